"""Where a run's lines go: the ranks' to our standard output and error as they came, kit's own remarks to standard error."""

import os
import sys
from pathlib import Path
from typing import IO, Final

from accelkit.host import render
from accelkit.host.launch.events import Line

TAIL: Final = 65536


class Terminal:
    """Prints lines; a standard output that is closed (`kit run ... | head`) ends the printing, not the run."""

    def __init__(self) -> None:
        """Prints to this process's streams."""
        self._open = {"stdout": True, "stderr": True}

    def line(self, line: Line) -> None:
        """Write a line's bytes to the stream that it came from."""
        if not self._open[line.stream]:
            return
        stream = sys.stdout if line.stream == "stdout" else sys.stderr
        try:
            stream.buffer.write(line.data)
            stream.buffer.flush()
        except (BrokenPipeError, ValueError):
            self._open[line.stream] = False
            _silence(stream)

    def note(self, text: str) -> None:
        """A remark of kit's."""
        render.note(text)


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
        """Append a line as it came."""
        self._file.write(line.data)

    def note(self, text: str) -> None:
        """Append a remark of kit's."""
        self._file.write(f"kit: {text}\n".encode())


def _silence(stream: IO[str]) -> None:
    """Point a broken stream at /dev/null, so that the interpreter does not complain about it when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
