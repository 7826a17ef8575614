"""Ctrl-C, SIGTERM and SIGHUP: an exception while kit prepares, an event while it supervises."""

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, Final

from accelkit.host import process

HANDLED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """kit was told to end. `exit_code` is 128 + the signal's number."""

    def __init__(self, number: int) -> None:
        """`number`: the signal."""
        super().__init__(signal.Signals(number).name)
        self.number = number
        self.exit_code = 128 + number


class Guard(AbstractContextManager["Guard"]):
    """While it is entered the handled signals raise Interrupted, or go to the function that `redirect` names.

    Handlers are set even where the caller ignores a signal (a shell's background job ignores SIGINT), but for SIGHUP, which nohup ignores
    so that what it starts goes on without its terminal. Usable in the main thread only.
    """

    def __init__(self) -> None:
        """Changes nothing yet."""
        self._previous: dict[int, Any] = {}
        self._deliver: Callable[[int], None] | None = None

    def __enter__(self) -> "Guard":  # noqa: PYI034  (Self is not in Python 3.10)
        """Set the handlers."""
        for number in process.unless_nohup(HANDLED):
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        """Put the caller's handlers back."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def redirect(self, deliver: Callable[[int], None] | None) -> None:
        """From now on call `deliver(number)` instead of raising; None raises again."""
        self._deliver = deliver

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._deliver is None:
            raise Interrupted(number)
        self._deliver(number)
