"""The supervisor of a detached run: `python -m accelkit.host.launch.detached RUN_DIR`, started by `kit run --detach`."""

import sys
from pathlib import Path

from accelkit.host.errors import KitError
from accelkit.host.launch import api, report
from accelkit.host.launch.screen import LogFile
from accelkit.host.launch.signals import Guard
from accelkit.host.runs.store import Store


def main() -> int:
    """Supervise the run in the folder that is named and return its exit code; everything is written to its kit.log."""
    run_dir = Path(sys.argv[1])
    store = Store(run_dir.parent.parent.parent)
    screen = LogFile(run_dir / api.DETACHED_LOG)
    try:
        with Guard() as guard:
            record = api.supervise_run(store, store.load(run_dir.name), screen, guard)
    except KitError as error:
        screen.note(f"error: {error.message}")
        return error.exit_code
    if record.outcome is None or record.outcome.exit_code:
        screen.note("\n".join(filter(None, (report.first_failure(record), report.summary(record)))))
    return record.outcome.exit_code if record.outcome else 0


if __name__ == "__main__":
    sys.exit(main())
