"""Relaying what ranks print: each line whole, with its prefix, to our own streams, and without it to the rank's log.

A progress bar, which returns to the start of its line, is passed on as it moves: each state ends with a carriage return.
"""

import os
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

from accelkit.contract import codec, names

MAX_LINE: Final = 1 << 16
"""Bytes; a longer line is passed on in pieces, so that a flood without line ends needs no memory."""
_CHUNK: Final = 1 << 16


class Relay:
    """One stream of one rank. `pump` is called when its pipe can be read."""

    def __init__(self, pipe: int, target: Literal[1, 2], prefix: bytes, log: BinaryIO) -> None:
        """`pipe`: non-blocking file descriptor; `target`: our standard output or error; `log`: unbuffered, shared by both streams."""
        self.pipe = pipe
        self._target: int = target
        self._prefix = prefix
        self._log = log
        self._rest = b""
        self._lost = False

    def pump(self) -> bool:
        """Pass on what is there; False at the end of the pipe."""
        try:
            data = os.read(self.pipe, _CHUNK)
        except BlockingIOError:
            return True
        if not data:
            self.flush()
            return False
        self._keep(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._emit(line)
        if b"\r" in self._rest:
            self._rest = self._bar(self._rest)
        if len(self._rest) > MAX_LINE:
            self._emit(self._rest)
            self._rest = b""
        return True

    def _bar(self, states: bytes) -> bytes:
        """Pass on the last state of a progress bar, ended by a carriage return; what came before it is over."""
        *_, state = states.rstrip(b"\r").split(b"\r")
        if state:
            say(self._target, self._prefix + state + b"\r")
        return state + b"\r" if states.endswith(b"\r") else state

    def _keep(self, data: bytes) -> None:
        """Into the log; a full disk costs the log, not the run."""
        try:
            self._log.write(data)
        except OSError as error:
            if not self._lost:
                say(2, self._prefix + f"cannot write its log: {error.strerror}\n".encode())
            self._lost = True

    def flush(self) -> None:
        """Pass on a last line that has no end."""
        if self._rest:
            self._emit(self._rest)
            self._rest = b""

    def close(self) -> None:
        """Close the pipe."""
        self.flush()
        os.close(self.pipe)

    def _emit(self, line: bytes) -> None:
        """One write a line, so that lines of ranks do not mix; of a progress bar only its last state."""
        shown = line.rstrip(b"\r").rpartition(b"\r")[2]
        say(self._target, self._prefix + shown + b"\n")


def say(target: int, data: bytes) -> None:
    """Write to one of our own streams; one that is closed (kit was killed) does not end the run."""
    while data:
        try:
            data = data[os.write(target, data) :]
        except BlockingIOError:
            continue
        except OSError:
            return


def open_log(path: Path) -> BinaryIO:
    """A rank's log, unbuffered; what goes nowhere where it cannot be made (a full disk)."""
    try:
        return path.open("ab", buffering=0)
    except OSError as error:
        say(2, f"kit_boot: cannot write {path}: {error.strerror}\n".encode())
        return open(os.devnull, "ab", buffering=0)


def leave(path: Path, document: Any) -> None:
    """Leave a document for the host. Where that cannot be (a full disk), the exit code still tells how it ended."""
    try:
        codec.write(path, document, mode=names.EXCHANGED)
    except OSError as error:
        say(2, f"kit_boot: cannot write {path}: {error.strerror}\n".encode())
