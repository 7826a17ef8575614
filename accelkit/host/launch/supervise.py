"""Supervision of a run: one loop over one queue of events. The first failure, a time-out or a signal ends the run; then nothing is left.

Every wait has a limit. After a failure the nodes get FAILURE_GRACE seconds to fail by themselves, then SIGTERM, then STOP_GRACE seconds
later SIGKILL. A signal to kit skips the first wait; a second signal skips the second.
"""

import signal
import threading
import time
from typing import Final

from accelkit.contract import names
from accelkit.host.errors import KitError
from accelkit.host.launch.backends.base import Backend
from accelkit.host.launch.events import (
    EngineLost,
    Event,
    EventQueue,
    Line,
    NodeExited,
    Signalled,
    Started,
    StartFailed,
)
from accelkit.host.launch.screen import Printer, Screen
from accelkit.host.runs.record import OutcomeState

FAILURE_GRACE: Final = 1.0
STOP_GRACE: Final = 6.0
KILL_GRACE: Final = 3.0
STACKS_GRACE: Final = 1.0
"""Seconds; the sum of the last three is below the ten in which Ctrl-C must leave nothing."""
PRINT_GRACE: Final = 1.0
"""Seconds that a screen gets to take the last lines after a signal."""


class Supervisor:
    """One run's life, from start to the last node's end. `run` may be called once."""

    def __init__(self, backend: Backend, nodes: int, screen: Screen, *, timeout: float | None) -> None:
        """`timeout`: seconds from the start, or None."""
        self._backend = backend
        self._nodes = nodes
        self._timeout = timeout
        self._events = EventQueue()
        self._screen = Printer(screen, self._events.printed)
        self._deadlines: dict[str, float] = {}
        self._starting = True
        self.exits: list[NodeExited] = []
        self.state: OutcomeState = "ok"
        self.signal: int | None = None
        self.error: KitError | None = None

    def deliver(self, number: int) -> None:
        """A signal to kit; safe to call from a signal handler."""
        self._events.put(Signalled(number))

    def run(self) -> None:
        """Start the nodes and return when all are gone, or the engine is lost, or waiting has had its limit."""
        threading.Thread(target=self._start, daemon=True).start()
        if self._timeout is not None:
            self._deadlines["timeout"] = time.monotonic() + self._timeout
        while not self._over():
            event = self._next()
            if event is not None:
                self._take(event)
            self._check_deadlines()
        self._drain()
        self._finish_printing()

    def _start(self) -> None:
        try:
            self._backend.start(self._events)
        except Exception as error:  # noqa: BLE001  (an outer edge: a thread's failure must reach the loop)
            self._events.put(StartFailed(error))
        else:
            self._events.put(Started())

    def _over(self) -> bool:
        if self._starting:
            return "given-up" in self._deadlines
        return len(self.exits) >= self._nodes or self.error is not None or "given-up" in self._deadlines

    def _next(self) -> Event | None:
        nearest = min(self._deadlines.values(), default=None)
        return self._events.get(None if nearest is None else max(0.0, nearest - time.monotonic()))

    def _take(self, event: Event) -> None:
        if isinstance(event, Line):
            self._screen.line(event)
        elif isinstance(event, NodeExited):
            self._node_exited(event)
        elif isinstance(event, Signalled):
            self._signalled(event.number)
        elif isinstance(event, Started):
            self._started()
        elif isinstance(event, StartFailed):
            self._start_failed(event.error)
        else:
            self._engine_lost(event)

    def _engine_lost(self, event: EngineLost) -> None:
        if self.error is None:
            self.state, self.error = "kit-error", KitError(event.message)

    def _started(self) -> None:
        self._starting = False
        if self.state != "ok":
            self._backend.stop()

    def _start_failed(self, error: Exception) -> None:
        self._starting = False
        known = error if isinstance(error, KitError) else KitError(f"{type(error).__name__}: {error}")
        self.error = known
        if self.state == "ok":
            self.state = "kit-error"

    def _node_exited(self, event: NodeExited) -> None:
        self.exits.append(event)
        if event.code != 0 and self.state == "ok":
            self.state = "failed"
            if len(self.exits) < self._nodes:
                self._screen.note(
                    f"{names.node_name(event.node)} has ended (exit code {event.code}); stopping the others"
                )
            self._deadlines["stop"] = time.monotonic() + FAILURE_GRACE

    def _signalled(self, number: int) -> None:
        if self.signal is None:
            self.signal = number
            self._screen.note(f"stopping the run{'; once more to kill it' if number == signal.SIGINT else ''}")
            self._end("interrupted")
        else:
            self._screen.note("killing the run")
            self._backend.kill()
            self._deadlines["give-up"] = time.monotonic() + KILL_GRACE

    def _end(self, state: OutcomeState) -> None:
        if self.state in ("ok", "failed"):
            self.state = state
        self._deadlines.pop("timeout", None)
        self._events.wait_no_more()
        self._backend.stop()
        self._deadlines["kill"] = time.monotonic() + STOP_GRACE

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        for name in [n for n, at in self._deadlines.items() if at <= now and n != "given-up"]:
            del self._deadlines[name]
            self._reached(name, now)

    def _reached(self, name: str, now: float) -> None:
        if name == "timeout":
            self._screen.note(f"time is up after {self._timeout:g} s: printing every rank's stack and stopping the run")
            if self.state == "ok":  # a rank that failed before is still why the run failed
                self.state = "timeout"
            self._backend.dump_stacks()
            self._deadlines["stop"] = now + STACKS_GRACE
        elif name == "stop":
            self._end(self.state)
        elif name == "kill":
            self._backend.kill()
            self._deadlines["give-up"] = now + KILL_GRACE
        elif name == "give-up":
            self._screen.note("some of the run did not end; kit runs clean will remove what is left")
            self._deadlines["given-up"] = now

    def _drain(self) -> None:
        """What was still in the queue when the last node had ended."""
        while (event := self._events.get(0.0)) is not None:
            if isinstance(event, Line):
                self._screen.line(event)

    def _finish_printing(self) -> None:
        """Wait until all is printed; not for a reader that takes nothing once somebody wants an end."""
        self._screen.close()
        last = time.monotonic() + PRINT_GRACE if self.signal is not None else None
        while not self._screen.is_done(0.1) and (last is None or time.monotonic() < last):
            if last is None and not self._events.is_empty():  # nothing comes any more but a signal
                last = time.monotonic() + PRINT_GRACE
