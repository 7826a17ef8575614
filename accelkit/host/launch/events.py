"""What happens while a run lives, as values in one queue: the supervisor's only input."""

import queue
import threading
from typing import Final, Literal, TypeAlias

from accelkit.contract.data import ordered_data


@ordered_data
class Line:
    """A line that a node printed, with its prefix and its end."""

    stream: Literal["stdout", "stderr"]
    data: bytes


@ordered_data
class Started:
    """All nodes were started."""


@ordered_data
class StartFailed:
    """The nodes could not be started."""

    error: Exception


@ordered_data
class NodeExited:
    """A node is gone."""

    node: int
    code: int
    """As a shell would see it."""
    oom: bool = False
    """The engine says that its memory limit killed it."""


@ordered_data
class EngineLost:
    """The engine does not answer any more."""

    message: str


@ordered_data
class Signalled:
    """kit itself was sent a signal."""

    number: int


Event: TypeAlias = Line | Started | StartFailed | NodeExited | EngineLost | Signalled

LINES: Final = 10_000
"""Lines that wait to be printed at most; who reads the nodes' output waits when there are more."""


class EventQueue:
    """The events of one run, in order. Lines have a limit, so that a reader that is slow costs no memory; nothing else ever waits."""

    def __init__(self) -> None:
        """Empty."""
        self._queue: queue.SimpleQueue[Event] = queue.SimpleQueue()  # its put() may be called from a signal handler
        self._room = threading.Condition()
        self._lines = 0
        self._limit: float = LINES

    def put(self, event: Event) -> None:
        """Add an event; a line waits until there is room."""
        if isinstance(event, Line):
            with self._room:
                self._room.wait_for(self._has_room)
                self._lines += 1
        self._queue.put(event)

    def get(self, timeout: float | None) -> Event | None:
        """The next event, waiting `timeout` seconds for it (None: for ever); None when there is none by then."""
        try:
            return self._queue.get(timeout=timeout)
        except queue.Empty:
            return None

    def is_empty(self) -> bool:
        """Whether nothing waits to be taken."""
        return self._queue.empty()

    def printed(self) -> None:
        """A line that was taken is printed: there is room for another one."""
        with self._room:
            self._lines -= 1
            self._room.notify()

    def wait_no_more(self) -> None:
        """The run is to end: from now on lines have no limit, so that what prints them hears of it."""
        with self._room:
            self._limit = float("inf")
            self._room.notify_all()

    def last_lines(self, reader: threading.Thread, patience: float) -> None:
        """Wait for the end of a thread that puts lines: for `patience` seconds, and for as long as it may be waiting for room."""
        reader.join(patience)
        while reader.is_alive() and not self._has_room():
            reader.join(patience)

    def _has_room(self) -> bool:
        return self._lines < self._limit
