"""The one module of the host side that starts processes."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from accelkit.host.errors import KitError

PIPE: Final = subprocess.PIPE
TO_STDOUT: Final = subprocess.STDOUT
"""As `stderr` of a Child: into its standard output."""


@dataclass(frozen=True, kw_only=True)
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
    text: str | None = None,
    timeout: float | None = None,
    check: bool = False,
) -> Finished:
    """Run to the end and capture the output as text (undecodable bytes kept as surrogates).

    `env` is added to kit's own environment. `text` goes to standard input. Raises KitError when the program is not there, when
    `timeout` seconds pass, and with `check` when it exits with anything but 0.
    """
    try:
        done = subprocess.run(
            list(argv),
            cwd=cwd,
            env={**os.environ, **env} if env else None,
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

    def tell(self, text: str) -> None:
        """Write all of its standard input, once; nothing happens when it is gone. Raises ValueError when that was not piped."""
        if self._process.stdin is None:
            raise ValueError("standard input was not piped")
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:
            pipe.write(text.encode())

    @property
    def stderr(self) -> IO[bytes]:
        """What it writes to standard error. Raises ValueError when that was not piped."""
        if self._process.stderr is None:
            raise ValueError("standard error was not piped")
        return self._process.stderr

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


def attach(argv: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> int:
    """Run with our own terminal (for shells and debuggers) and return the exit code as a shell would see it.

    Ctrl-C goes to the program alone while it runs. Raises KitError when the program is not there.
    """
    previous = signal.signal(signal.SIGINT, lambda *_: None)  # not SIG_IGN, which the program would inherit
    try:
        code = subprocess.run(list(argv), cwd=cwd, env=None if env is None else dict(env), check=False).returncode
    except FileNotFoundError as error:
        raise KitError(f"{argv[0]}: not found") from error
    finally:
        signal.signal(signal.SIGINT, previous)
    return 128 - code if code < 0 else code
