"""Saying who is missing when ranks wait for each other.

Every rank has one thread that sleeps in `recvfrom`: it costs nothing until somebody asks. A rank that has waited for longer
than its patience asks the others where they are, and prints the answer; when the time limit ends the operation, the error
says the same. Nothing is sent, and no store is asked, while nobody waits.
"""

import atexit
import contextlib
import json
import os
import secrets
import select
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, Final

import torch

from accelkit.runtime.errors import DistributedOperationException

PATIENCE: Final = 30.0
"""Seconds until the first word."""
_ANSWER: Final = 2.0
"""Seconds to wait for the others' answers."""
_LIBRARIES: Final = (str(Path(__file__).resolve().parents[1]), str(Path(torch.__file__).resolve().parent), "<")
"""Folders whose lines are not the script's."""
_LOCALHOST: Final = "127.0.0.1"


class Watch:
    """One rank's watch over its own waiting. `store` has `set`, `get` and `check`; `reach` is an address of rank 0's machine."""

    def __init__(self, rank: int, size: int, store: Any, *, reach: str | None, patience: float = PATIENCE) -> None:
        self._rank, self._size = rank, size
        self._store = store
        self._patience = patience
        self._token = secrets.token_hex(8)
        self._main = threading.main_thread().ident
        self._now: tuple[str, float] | None = None
        """The operation in which this rank waits, and since when."""
        self._next = patience
        self._is_over = threading.Event()
        self._server = _open(reach)
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="accelkit-watch", daemon=True)
        self._thread.start()
        atexit.register(self.stop)

    def begin(self, operation: str) -> None:
        """This rank waits for the others from now on."""
        self._now = operation, time.monotonic()

    def end(self) -> None:
        """It waits no longer."""
        self._now = None

    def explain(self, error: RuntimeError) -> None:
        """When a time limit ended the waiting, raise DistributedOperationException that says who is where."""
        text = str(error).lower()
        if "timed out" in text or "timeout" in text:
            hint = "every rank must make the same calls; InitProcessGroupKwargs(timeout=...) sets the limit"
            raise DistributedOperationException(self.report(), hint=hint) from error

    def report(self, server: socket.socket | None = None) -> str:
        """Where every rank is, a line each. `server`: answer others meanwhile, where this is the thread that does."""
        operation, since = self._now or ("no operation", time.monotonic())
        head = f"{operation}: rank {self._rank} has waited {time.monotonic() - since:.0f} s for ranks that have not called it"
        lines = [f"  rank {rank}: {place}" for rank, place in self._places(range(self._size), server).items()]
        return "\n".join([head, *lines])

    def stop(self) -> None:
        """End the thread, and wait for it: one that wakes while the interpreter is taken apart would bring the process down."""
        atexit.unregister(self.stop)
        if self._is_over.is_set() or self._process != os.getpid():
            return
        self._is_over.set()
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as waker:
            waker.sendto(b"", self._server.getsockname())
        self._thread.join(timeout=2 * _ANSWER)

    # ---- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with self._server as server:
            server.settimeout(min(1.0, self._patience / 3))
            host, port = server.getsockname()[:2]
            try:
                self._store.set(f"accelkit/watch/{self._rank}", json.dumps([host, port, self._token]))
            except RuntimeError:
                return  # the run is over already
            while not self._is_over.is_set():
                self._serve(server)
                self._speak(server)

    def _serve(self, server: socket.socket) -> None:
        """Answer one question, if there is one."""
        try:
            asked, whom = server.recvfrom(256)
            if secrets.compare_digest(asked, self._token.encode()):
                server.sendto(json.dumps(self._place()).encode()[:8192], whom)
        except OSError:
            return

    def _speak(self, server: socket.socket) -> None:
        """Print who is missing, once the patience is over, and again after twice as long; of several that wait, only the first."""
        now = self._now
        if now is None:
            self._next = self._patience
            return
        if time.monotonic() - now[1] < self._next:
            return
        self._next *= 2
        before = self._places(range(self._rank), server)
        if any(place.startswith("waits in") for place in before.values()) or self._now is not now:
            return
        print(f"accelkit: {self.report(server)}", file=sys.stderr, flush=True)

    # ---- questions and answers ------------------------------------------------------------------------------------

    def _place(self) -> str:
        """What this rank does."""
        now, line = self._now, _line_of(self._main)
        return f"waits in {now[0]} at {line}" if now is not None else f"is at {line}"

    def _places(self, ranks: Any, server: socket.socket | None) -> dict[int, str]:
        """What each of the ranks says that it does. Two that ask each other both get their answer, since each answers meanwhile."""
        found = {rank: self._place() if rank == self._rank else "gave no answer" for rank in ranks}
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
            asked = {}
            for rank in found:
                address = None if rank == self._rank else self._address(rank)
                if address is not None:
                    asker.sendto(address[2].encode(), (address[0], address[1]))
                    asked[(address[0], address[1])] = rank
            end = time.monotonic() + _ANSWER
            while asked and (left := end - time.monotonic()) > 0:
                ready = select.select([asker] if server is None else [asker, server], [], [], left)[0]
                if server is not None and server in ready:
                    self._serve(server)
                if asker in ready:
                    _take_answer(asker, asked, found)
        return found

    def _address(self, rank: int) -> tuple[str, int, str] | None:
        key = f"accelkit/watch/{rank}"
        try:
            if not self._store.check([key]):
                return None
            host, port, token = json.loads(self._store.get(key))
        except RuntimeError:
            return None
        return host, port, token


def _take_answer(asker: socket.socket, asked: dict[tuple[str, int], int], found: dict[int, str]) -> None:
    """Note one answer in `found`; who gave it is asked no longer."""
    try:
        text, whom = asker.recvfrom(8192)
    except OSError:  # a rank that has ended refuses
        return
    rank = asked.pop(whom[:2], None)
    if rank is not None:
        found[rank] = str(json.loads(text))


def _open(reach: str | None) -> socket.socket:
    """A socket at the address of this machine by which the other ranks reach it."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for host in (_own_address(reach), _LOCALHOST):
        try:
            server.bind((host, 0))
            break
        except OSError:
            continue
    return server


def _own_address(reach: str | None) -> str:
    if reach is None:
        return _LOCALHOST
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((reach, 9))  # nothing is sent
            return str(probe.getsockname()[0])
        except OSError:
            return _LOCALHOST


def _line_of(thread: int | None) -> str:
    """The script's line that a thread is in: the innermost one that is neither ours nor torch's."""
    frame = sys._current_frames().get(thread or 0)  # noqa: SLF001  (the way to another thread's stack)
    if frame is None:
        return "its end"
    stack = traceback.extract_stack(frame)
    script = [entry for entry in stack if not entry.filename.startswith(_LIBRARIES)]
    entry = (script or stack)[-1]
    return f"{entry.filename}:{entry.lineno} in {entry.name}: {entry.line}"
