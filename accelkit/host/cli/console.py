"""The `kit` command from its first moment: quiet on Ctrl-C, also while its modules are still being imported."""

import os
import signal
import sys
from typing import NoReturn


def console() -> NoReturn:
    """`kit`, and an exit that does not take the interpreter apart, which takes longer than many a command."""
    code: object
    _open_streams()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    try:
        _guess(sys.argv[1:])
        from accelkit.host.cli.main import main

        main()
    except SystemExit as ended:
        code = ended.code
    if inquiry := sys.modules.get("accelkit.host.engine.inquiry"):
        inquiry.forget()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # a reader that has gone
            continue
    os._exit(code if isinstance(code, int) else bool(code))


def _guess(arguments: list[str]) -> None:
    """Begin with what takes long, as the command line looks, before that can be read."""
    if "local" in arguments:
        from accelkit.host.launch import early

        early.guess(arguments)
    elif arguments[:1] in (["run"], ["launch"]) and not {"--help", "-h", "--on=local"} & set(arguments):
        from accelkit.host.engine import inquiry

        inquiry.guess()


def _open_streams() -> None:
    """A standard stream that the caller has closed goes nowhere: else the next file that is opened would be in its place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            made = os.open(os.devnull, os.O_RDWR)
            if made != number:
                os.dup2(made, number)
                os.close(made)
        if getattr(sys, name) is None:
            stream = open(number, "w" if number else "r", encoding="utf-8", closefd=False)  # noqa: SIM115  (for as long as kit lives)
            setattr(sys, name, stream)


def _leave(_number: int, _frame: object) -> NoReturn:
    """Until a command has its own way with Ctrl-C: whatever is cleaned up on the way out is, nothing is said."""
    sys.exit(130)


if __name__ == "__main__":
    console()
