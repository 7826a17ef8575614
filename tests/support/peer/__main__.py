"""Run one of the package's scripts on this rank: python -m tests.support.peer SCRIPT [left-out check ...]."""

import importlib
import sys
from typing import Any

from tests.support import peer


def main(script: str, *left_out: str) -> None:
    """Replace the checks that are left out by ones that say so, and run the rest as the script does."""
    peer.install()
    module = importlib.import_module(f"{peer.SCRIPTS}.{script}")
    for name in left_out:
        if not callable(getattr(module, name)):
            raise SystemExit(f"{script} has no check {name}")
        setattr(module, name, _leave_out(name))
    module.main()


def _leave_out(name: str) -> Any:
    return lambda *_, **__: print(f"left out: {name}")


if __name__ == "__main__":
    main(*sys.argv[1:])
