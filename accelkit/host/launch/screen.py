"""Where a run's lines go: the ranks' to our standard output and error as they came, kit's own remarks to standard error."""

import os
import queue
import shutil
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, Protocol, TextIO

from accelkit.host import render
from accelkit.host.launch.events import Line
from accelkit.host.launch.pieces import BAR_END

ERASE_LINE: Final = b"\x1b[K"
"""Erases what an earlier state of a progress bar left, from the cursor on, which is at the start of the line."""


class Screen(Protocol):
    """Where a run's lines and kit's remarks about it go."""

    def line(self, line: Line) -> None:
        """A line of a rank or of boot, as it came."""
        ...

    def note(self, text: str) -> None:
        """A remark of kit's own."""
        ...


class Terminal:
    """Prints lines; a standard output that is closed (`kit run ... | head`) or full ends the printing, not the run.

    Progress bars move on a terminal; elsewhere only their last state is printed.
    """

    def __init__(self) -> None:
        """Prints to this process's streams."""
        self._open = {"stdout": True, "stderr": True}
        self._bar = False

    def line(self, line: Line) -> None:
        """Write a line's bytes to the stream that it came from."""
        if not self._open[line.stream]:
            return
        stream = sys.stdout if line.stream == "stdout" else sys.stderr
        try:
            self._write(stream, line.data)
        except (OSError, ValueError) as error:
            self._open[line.stream] = False
            _silence(stream)
            why = (
                "is closed"
                if isinstance(error, (BrokenPipeError, ValueError))
                else f"cannot be written ({error.strerror})"
            )
            if line.stream == "stdout":
                render.note(f"standard output {why}; the run goes on, and its logs have all of it")

    def _write(self, stream: TextIO, data: bytes) -> None:
        bar = data.endswith(BAR_END)
        if bar and not stream.isatty():
            return
        if bar:
            width = shutil.get_terminal_size().columns - 1  # a state that wraps could not be written over
            data = data[:-1].decode(errors="replace")[:width].encode() + BAR_END
        if self._bar and stream.isatty():
            data = ERASE_LINE + data
        self._bar = bar
        stream.buffer.write(data)
        stream.buffer.flush()

    def note(self, text: str) -> None:
        """A remark of kit's."""
        render.note(text)


class Printer:
    """A screen that prints in a thread of its own, in order: one that does not take what is printed holds up nobody else."""

    def __init__(self, screen: Screen, printed: Callable[[], None]) -> None:
        """Print on `screen`; `printed` is called after each line."""
        self._screen = screen
        self._printed = printed
        self._queue: queue.SimpleQueue[Line | str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._print, daemon=True)
        self._thread.start()

    def line(self, line: Line) -> None:
        """Print a line later."""
        self._queue.put(line)

    def note(self, text: str) -> None:
        """Print a remark later."""
        self._queue.put(text)

    def close(self) -> None:
        """Nothing comes after what was handed over so far."""
        self._queue.put(None)

    def is_done(self, timeout: float) -> bool:
        """Whether all is printed, waiting for that for `timeout` seconds; after `close`."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _print(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, str):
                self._screen.note(item)
            else:
                self._screen.line(item)
                self._printed()


class Quiet:
    """Prints nothing: the logs are in the run's folder."""

    def line(self, line: Line) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""


class LogFile:
    """Writes both into one file: the screen of a run that nobody watches."""

    def __init__(self, path: Path) -> None:
        """Append to `path`."""
        self._file: IO[bytes] = path.open("ab", buffering=0)

    def line(self, line: Line) -> None:
        """Append a line as it came; of a progress bar only its last state."""
        if not line.data.endswith(BAR_END):
            with suppress(OSError):  # a full disk costs the log, not the run
                self._file.write(line.data)

    def note(self, text: str) -> None:
        """Append a remark of kit's."""
        with suppress(OSError):
            self._file.write(f"kit: {text}\n".encode())


def _silence(stream: IO[str]) -> None:
    """Point a broken stream at /dev/null, so that the interpreter does not complain about it when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
