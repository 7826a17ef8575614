"""One rank: runs the user's script as `python SCRIPT` (or `python -m MODULE`) would, and writes down the exception that ends it.

The script runs in the real `__main__` module, so that pickling, spawned data loader workers and threads that outlive it find what they
expect. Imports no torch.
"""

import faulthandler
import os
import runpy
import signal
import sys
import sysconfig
import time
import traceback
from pathlib import Path
from types import TracebackType

from accelkit.contract import codec, names
from accelkit.contract.results import RankError
from accelkit.contract.spec import LaunchSpec, Program

_OWN = str(Path(__file__).resolve().parent)


def main() -> None:
    """Run the spec's program and exit as Python would."""
    spec = codec.read(LaunchSpec, os.environ[names.ENV_SPEC])
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)
    pid = os.getpid()
    try:
        _run(spec.program)
    except SystemExit:
        raise
    except BaseException as error:
        if os.getpid() != pid:
            raise
        _report(spec, error)
        sys.stdout.flush()
        sys.exit(130 if isinstance(error, KeyboardInterrupt) else 1)


def _run(program: Program) -> None:
    if program.kind == "module":
        sys.path.insert(0, os.getcwd())
        sys.argv = [program.target, *program.args]
        runpy.run_module(program.target, run_name="__main__", alter_sys=True)
        return
    path = os.path.abspath(program.target)
    sys.path.insert(0, os.path.dirname(path))
    sys.argv = [program.target, *program.args]
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec")
    main_module = sys.modules["__main__"]
    for name in [n for n in main_module.__dict__ if not n.startswith("__")]:
        del main_module.__dict__[name]
    main_module.__dict__.update(__file__=path, __spec__=None, __doc__=None, __package__=None, __cached__=None)
    exec(code, main_module.__dict__)  # noqa: S102  (that is what we are for)


def _report(spec: LaunchSpec, error: BaseException) -> None:
    """Print the traceback as Python does, without our own frames, and leave it in the exchange folder."""
    shown = _users_part(error.__traceback__)
    text = "".join(traceback.format_exception(type(error), error, shown))
    sys.stderr.write(text)
    sys.stderr.flush()
    file, line = _place(shown, error)
    found = RankError(
        type=_name(type(error)), message=str(error), traceback=text, file=file, line=line, time=time.time()
    )
    codec.write(Path(spec.exchange_dir) / names.rank_error_file(int(os.environ["RANK"])), found)


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
