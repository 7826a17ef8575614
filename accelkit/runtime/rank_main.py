"""One rank: runs the user's script as `python SCRIPT` (or `python -m MODULE`) would, and writes down the exception that ends it.

The script runs in the real `__main__` module, so that pickling, spawned data loader workers and threads that outlive it find what they
expect. Imports no torch.
"""

import atexit
import faulthandler
import os
import signal
import sys
import time
from types import TracebackType

from accelkit.contract import names

EXIT_GRACE = 10.0
"""Seconds between an exception that ends the script and the end of the process."""
_OWN = os.path.dirname(os.path.realpath(__file__))


def main(kind: str, target: str, *arguments: str) -> None:
    """Run the program (`kind`: "script" or "module") and exit as Python would."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)
    atexit.register(_leave_groups)
    pid = os.getpid()
    error_file = os.path.join(
        os.path.dirname(os.environ[names.ENV_SPEC]), names.rank_error_file(int(os.environ["RANK"]))
    )
    sys.argv = [target, *arguments]
    try:
        _run_module(target) if kind == "module" else _run_script(target)
    except SystemExit as ended:
        if os.getpid() == pid and not isinstance(ended.code, int | None):
            _leave(ended, error_file, f"{ended.code}\n", _users_part(ended.__traceback__))  # Python prints it
        raise
    except BaseException as error:
        if os.getpid() != pid:
            raise
        _report(error, error_file)
        sys.stdout.flush()
        # Threads and exit handlers get their time; a rank that hangs in them shows where, and ends.
        faulthandler.dump_traceback_later(EXIT_GRACE, exit=True)
        sys.exit(130 if isinstance(error, KeyboardInterrupt) else 1)


def _leave_groups() -> None:
    if "torch.distributed" in sys.modules:
        from accelkit.runtime import leaving

        leaving.leave_groups()


def _run_module(name: str) -> None:
    import runpy

    _find_first(os.getcwd())
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _run_script(target: str) -> None:
    path = os.path.abspath(target)
    _find_first(os.path.dirname(path))
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec")
    main_module = sys.modules["__main__"]
    for name in [n for n in main_module.__dict__ if not n.startswith("__")]:
        del main_module.__dict__[name]
    main_module.__dict__.update(__file__=path, __spec__=None, __doc__=None, __package__=None, __cached__=None)
    exec(code, main_module.__dict__)  # noqa: S102  (that is what we are for)


def _find_first(folder: str) -> None:
    """Modules of the program's own folder come first, unless the user has Python leave it out (-P, PYTHONSAFEPATH)."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, folder)


def _report(error: BaseException, path: str) -> None:
    """Print the traceback as Python does, without our own frames, and leave it in the exchange folder."""
    import traceback  # here and below: only a rank that fails waits for these

    shown = _users_part(error.__traceback__)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, shown  # as Python does for exit handlers
    text = "".join(traceback.format_exception(type(error), error, shown))
    sys.stderr.write(text)
    sys.stderr.flush()
    _leave(error, path, text, shown)


def _leave(error: BaseException, path: str, text: str, trace: TracebackType | None) -> None:
    """Write down what ended the script, for the failure report."""
    from accelkit.contract import codec
    from accelkit.contract.results import RankError

    file, line = _place(trace, error)
    found = RankError(
        type=_name(type(error)), message=_message(error), traceback=text, file=file, line=line, time=time.time()
    )
    try:
        codec.write(path, found, mode=names.EXCHANGED)
    except OSError as problem:  # a full disk: the traceback above tells it all
        sys.stderr.write(f"kit: cannot write {path}: {problem.strerror}\n")


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  (the user's own code)
        return "(its text cannot be made)"


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the script's first frame on."""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not (file.startswith(_OWN) or "runpy" in file) or trace.tb_next is None:
            break
        trace = trace.tb_next
    return None if trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OWN) else trace


def _place(trace: TracebackType | None, error: BaseException) -> tuple[str | None, int | None]:
    """File and line of the innermost frame of the user's own code, else of the innermost frame."""
    import sysconfig
    import traceback

    if isinstance(error, SyntaxError) and trace is None:
        return error.filename, error.lineno
    frames = [(f.filename, f.lineno) for f in traceback.extract_tb(trace)]
    foreign = tuple(
        filter(
            None,
            {
                sysconfig.get_path("stdlib"),
                sysconfig.get_path("purelib"),
                sysconfig.get_path("platlib"),
                _OWN,
                "<frozen",
            },
        )
    )
    own = [f for f in frames if not f[0].startswith(foreign)]
    chosen = own or frames
    return chosen[-1] if chosen else (None, None)
