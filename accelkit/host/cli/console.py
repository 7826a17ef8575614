"""The `kit` command from its first moment: quiet on Ctrl-C, also while its modules are still being imported."""

import os
import signal
import sys
from typing import NoReturn


def console() -> NoReturn:
    """`kit`, and an exit that does not take the interpreter apart, which takes longer than many a command."""
    code: object
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    try:
        if "local" in sys.argv:
            from accelkit.host.launch import early

            early.guess(sys.argv[1:])
        from accelkit.host.cli.main import main

        main()
    except SystemExit as ended:
        code = ended.code
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # a reader that has gone
            continue
    os._exit(code if isinstance(code, int) else bool(code))


def _leave(_number: int, _frame: object) -> NoReturn:
    """Until a command has its own way with Ctrl-C: whatever is cleaned up on the way out is, nothing is said."""
    sys.exit(130)


if __name__ == "__main__":
    console()
