"""Run every check on every rank and write down what came of it: `python -m accelkit.runtime.selftest`.

Rank 0 writes `selftest.json` into the exchange folder: a list of {"name", "ok", "seconds", "message"}. A check is good when it is good
on all ranks; the message is the first failing rank's.
"""

import json
import time

from accelkit.contract import codec
from accelkit.runtime import Accelerator
from accelkit.runtime.env import exchange_folder
from accelkit.runtime.selftest.checks import CHECKS, CheckFailed


def main() -> None:
    """Run all checks, in order; every rank goes through the same ones."""
    accelerator = Accelerator()
    results = []
    for check in CHECKS:
        started = time.perf_counter()
        message = ""
        try:
            check(accelerator)
        except CheckFailed as error:
            message = f"rank {accelerator.process_index}: {error}"
        seconds = time.perf_counter() - started
        messages = accelerator.gather_object([message])
        first = next((m for m in messages if m), "")
        results.append(
            {"name": (check.__doc__ or "").strip(". "), "ok": not first, "seconds": seconds, "message": first}
        )
    folder = exchange_folder()
    if accelerator.is_main_process and folder is not None:
        codec.write_text(folder / "selftest.json", json.dumps(results))


if __name__ == "__main__":
    main()
