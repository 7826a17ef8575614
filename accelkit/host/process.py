"""The one module of the host side that starts processes."""

import contextlib
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Final, Literal

from accelkit.contract import names
from accelkit.contract.data import data
from accelkit.host.errors import KitError

EndedBy = Literal["timeout", "interrupted"] | None
"""What ended a program from outside; None when it ended by itself."""
ATTACHED_GRACE: Final = 5.0
"""Seconds that a program on our terminal gets to end by itself."""
PIPE: Final = subprocess.PIPE
TO_STDOUT: Final = subprocess.STDOUT
"""As `stderr` of a Child: into its standard output."""
NOWHERE: Final = subprocess.DEVNULL
"""As `stdout` or `stderr` of a Child: thrown away."""


@data
class Finished:
    """A process that has ended: its exit code (negative: killed by that signal) and what it wrote."""

    argv: tuple[str, ...]
    code: int
    stdout: str
    stderr: str


def find(program: str) -> str | None:
    """Absolute path of `program` on PATH, or None."""
    return shutil.which(program)


def run(
    argv: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    drop: Sequence[str] = (),
    text: str | None = None,
    timeout: float | None = None,
    check: bool = False,
) -> Finished:
    """Run to the end and capture the output as text (undecodable bytes kept as surrogates).

    `env` is added to kit's own environment, less the variables in `drop`. `text` goes to standard input.
    Raises KitError when the program is not there, when `timeout` seconds pass, and with `check` when it exits with anything but 0.
    """
    try:
        done = subprocess.run(
            list(argv),
            cwd=cwd,
            env={**{k: v for k, v in os.environ.items() if k not in drop}, **(env or {})},
            input=b"" if text is None else text.encode("utf-8", "surrogateescape"),
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError as error:
        raise KitError(f"{argv[0]}: not found on PATH") from error
    except subprocess.TimeoutExpired as error:
        raise KitError(f"{' '.join(argv)}: no answer within {timeout:g} s") from error
    # Decoded by hand: text mode would turn \r\n into \n, and a diff would no longer apply.
    out, err = (data.decode("utf-8", "surrogateescape") for data in (done.stdout, done.stderr))
    result = Finished(argv=tuple(argv), code=done.returncode, stdout=out, stderr=err)
    if check and result.code != 0:
        raise KitError(f"{' '.join(argv)}: exit code {result.code}: {result.stderr.strip() or result.stdout.strip()}")
    return result


class Child:
    """A process that goes on beside us, in a session of its own, so that a terminal's Ctrl-C reaches it only through us."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
        stdout: int | IO[bytes] | None = subprocess.PIPE,
        stderr: int | IO[bytes] | None = subprocess.PIPE,
        keep: Sequence[int] = (),
    ) -> None:
        """Start `argv`. `env` is its whole environment (None: ours); `keep`: file descriptors that it inherits.

        Raises KitError when the program is not there.
        """
        try:
            self._process = subprocess.Popen(
                list(argv),
                cwd=cwd,
                env=None if env is None else dict(env),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                pass_fds=tuple(keep),
            )
        except FileNotFoundError as error:
            raise KitError(f"{argv[0]}: not found") from error

    @property
    def pid(self) -> int:
        """Process ID, which is also the ID of its process group."""
        return self._process.pid

    @property
    def stdout(self) -> IO[bytes]:
        """What it writes to standard output. Raises ValueError when that was not piped."""
        if self._process.stdout is None:
            raise ValueError("standard output was not piped")
        return self._process.stdout

    def tell(self, data: bytes) -> None:
        """Write all of its standard input, once; nothing happens when it is gone. Raises ValueError when that was not piped."""
        if self._process.stdin is None:
            raise ValueError("standard input was not piped")
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:
            pipe.write(data)

    @property
    def stderr(self) -> IO[bytes]:
        """What it writes to standard error. Raises ValueError when that was not piped."""
        if self._process.stderr is None:
            raise ValueError("standard error was not piped")
        return self._process.stderr

    def output(self, timeout: float) -> bytes | None:
        """All of its standard output once it has ended well; None when it failed, or is not done after `timeout` seconds and is killed."""
        try:
            written, _ = self._process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.kill_group()
            self._process.wait()
            return None
        return written if self._process.returncode == 0 else None

    def poll(self) -> int | None:
        """Exit code, or None while it runs."""
        return self._process.poll()

    def wait(self, timeout: float | None = None) -> int | None:
        """Exit code, or None when `timeout` seconds have passed."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def signal(self, number: int) -> None:
        """Send a signal to the process alone; nothing happens when it is gone."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def kill_group(self) -> None:
        """SIGKILL to the whole process group, whether or not its leader still lives."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return

    def lines(self) -> Iterator[str]:
        """Lines of standard output, without their end."""
        for raw in self.stdout:
            yield raw.decode(errors="replace").rstrip("\r\n")


def attach(
    argv: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None, timeout: float | None = None
) -> tuple[int, EndedBy]:
    """Run with our own terminal (for shells and debuggers); its exit code as a shell would see it, and what ended it from outside.

    Ctrl-C goes to the program alone while it runs. SIGTERM, SIGHUP (the terminal is gone) and the end of `timeout` seconds end it, after
    ATTACHED_GRACE seconds without asking; the code is then 128 + the signal, or 124. Raises KitError when the program is not there.
    """
    told: list[int] = []
    try:
        # SIGINT is caught, not ignored, which the program would inherit.
        with _handling((signal.SIGINT,), lambda *_: None):
            process = subprocess.Popen(list(argv), cwd=cwd, env=None if env is None else dict(env))

            def end(number: int, _frame: object = None) -> None:
                told.append(number)
                process.terminate()
                _later(ATTACHED_GRACE, process.kill)

            if timeout is not None:
                _later(timeout, lambda: end(0))
            with _handling((signal.SIGTERM, signal.SIGHUP), end):
                code = process.wait()
    except FileNotFoundError as error:
        raise KitError(f"{argv[0]}: not found") from error
    if told:
        return (128 + told[0], "interrupted") if told[0] else (names.EXIT_TIMEOUT, "timeout")
    return (128 - code if code < 0 else code), None


def _later(seconds: float, act: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()


def unless_nohup(numbers: Sequence[int]) -> list[int]:
    """These signals, less SIGHUP where it is ignored: `nohup` ignores it so that what it starts outlives its terminal."""
    return [n for n in numbers if n != signal.SIGHUP or signal.getsignal(n) is not signal.SIG_IGN]


@contextlib.contextmanager
def _handling(numbers: Sequence[int], handler: Callable[[int, object], None]) -> Iterator[None]:
    previous = {number: signal.signal(number, handler) for number in unless_nohup(numbers)}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
