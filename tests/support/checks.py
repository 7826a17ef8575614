"""On a rank: running the checks of a module; each check's outcome goes to a file that the test reads (see `worlds`)."""

import json
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelkit import Accelerator


def run_checks(names: Mapping[str, Any], folder: str) -> None:
    """On a rank: run everything called check_... in order. The first that fails ends this rank, and the message is in the file."""
    acc = Accelerator()
    found: dict[str, str] = {}
    file = Path(folder) / f"{acc.process_index}.json"
    for name, check in [item for item in names.items() if item[0].startswith("check_")]:
        try:
            check(acc)
        except BaseException:
            found[name] = traceback.format_exc()
            raise
        else:
            found[name] = ""
        finally:
            file.write_text(json.dumps(found))
