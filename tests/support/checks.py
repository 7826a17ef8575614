"""Running the checks of a module on every rank of one world; each check's outcome goes to a file that the test reads."""

import json
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelkit import Accelerator
from tests.support.ranks import Outcome, run_ranks

Found = tuple[list[Outcome], list[dict[str, str]]]


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


def visit(worlds: dict[int, Found], size: int, module: str, folder: Path) -> Found:
    """In the test: run the world of that size once, and remember what it found."""
    if size not in worlds:
        outcomes = run_ranks(size, "-m", module, str(folder), timeout=200)
        files = [folder / f"{rank}.json" for rank in range(size)]
        worlds[size] = outcomes, [json.loads(file.read_text()) if file.exists() else {} for file in files]
    return worlds[size]
