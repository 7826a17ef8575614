"""Reading ahead: while a module computes, the next ones' weights are read from their files by a thread.

The order in which modules run is that of the model at first, and then what the last forward did. It decides what is read
early, never what is computed: a forward that takes another way waits for its pages, and is right.
"""

import atexit
import itertools
import os
import resource
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from accelkit.runtime.bigmodel.mapping import Region, merged, region_of
from accelkit.runtime.bigmodel.tensors import all_slots, is_transformed, own_slots


@dataclass(frozen=True)
class Member:
    """A module whose weights are looked after."""

    module: nn.Module
    whole: bool
    """Whether all tensors below it count as its own."""
    stays: bool = False
    """Whether its weights are to stay in memory, and do not count for the budget."""


WINDOW: Final = 256 << 20
"""Bytes that are got ready ahead of what runs, when memory is not limited to less."""
_FAULTS: Final = 16
"""Page faults that needed the disk from which on the kernel is taken to have dropped what was ready."""


class Order:
    """Which key ran after which. Several threads may run at once; each follows its own."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._next = dict(itertools.pairwise([*keys, *keys[:1]]))
        self._last = threading.local()

    def __reduce__(self) -> Any:
        return Order, (list(self._next),)

    def seen(self, key: str) -> None:
        """This thread runs `key` now."""
        last = getattr(self._last, "key", None)
        if last is not None and last != key:
            self._next[last] = key
        self._last.key = key

    def after(self, key: str) -> Iterator[str]:
        """What is expected after a key, each once, never the key itself."""
        passed = {key}
        following = self._next.get(key)
        while following is not None and following not in passed:
            yield following
            passed.add(following)
            following = self._next.get(following)


_LAST_JOB: Final = 10.0
"""Seconds; reading ahead takes a fraction of one."""


class Worker:
    """One thread of this process that does what it is given, in order; started when it is first needed, anew after a fork."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._jobs: dict[int, Callable[[], None]] = {}
        self._process = 0
        self._thread: threading.Thread | None = None
        self._is_over = False

    def submit(self, owner: int, job: Callable[[], None]) -> None:
        """Do a job soon, in the place of one of the same owner that has not begun."""
        with self._wake:
            if self._process != os.getpid():
                self._process = os.getpid()
                self._jobs.clear()
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
                atexit.register(self._close)
            self._jobs[owner] = job
            self._wake.notify()

    def _close(self) -> None:
        """At exit: finish the job at hand. A thread that is at work while the interpreter is taken apart would bring it down."""
        with self._wake:
            self._is_over = True
            self._wake.notify()
        if self._thread is not None and self._process == os.getpid():
            self._thread.join(timeout=_LAST_JOB)

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._jobs and not self._is_over:
                    self._wake.wait()
                if self._is_over:
                    return
                job = self._jobs.pop(next(iter(self._jobs)))
            job()


WORKER: Final = Worker("accelkit-readahead")


class Readahead:
    """Looks after the mapped weights of one model that run on the CPU.

    Args:
        members: by key, in the order of the model.
        budget: bytes of these weights that may be in this process's memory at once; None: no limit. Within a limit, what runs
            first stays and the rest is read again each time (from the page cache, where the system has room).
    """

    def __init__(self, members: Mapping[str, Member], budget: int | None = None) -> None:
        self._members = dict(members)
        self._budget = budget
        self._order = Order(list(members))
        self._reset()
        for key in members:
            self._regions(key)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._groups: dict[str, list[Region]] = {}
        self._sizes: dict[str, int] = {}
        self._ready: dict[str, int] = {}
        self._faults = 0
        self._done = False

    def __getstate__(self) -> dict[str, Any]:
        return {"_members": self._members, "_budget": self._budget, "_order": self._order}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    @property
    def resident(self) -> int:
        """Bytes that are taken to be in this process's memory."""
        with self._lock:
            return sum(self._ready.values())

    def start(self) -> None:
        """A forward begins: look whether the system dropped what was ready, and begin with the first modules."""
        if torch.compiler.is_compiling():
            return
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        if faults - self._faults > _FAULTS:
            with self._lock:
                self._ready.clear()
                self._done = False
        self._faults = faults
        if not self._done:
            first = next(iter(self._members))
            WORKER.submit(id(self), lambda: self._prepare(first, itertools.chain([first], self._order.after(first))))

    def finish(self) -> None:
        """See Feed."""

    def enter(self, key: str) -> None:
        """See Feed."""
        if torch.compiler.is_compiling():
            return
        self._order.seen(key)
        if self._done:
            return
        counted = self._counted(key)
        with self._lock:
            self._ready[key] = counted
            self._done = self._budget is None and len(self._ready) == len(self._members)
        following = self._missing(key)
        if following:
            WORKER.submit(id(self), lambda: self._prepare(key, iter(following)))

    def take(self, key: str, homes: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """See Feed; these weights run where they are."""
        return list(homes)

    def leave(self, key: str) -> None:
        """See Feed."""
        if self._budget is None or torch.compiler.is_compiling():
            return
        with self._lock:
            over = sum(self._ready.values()) > self._budget - self._window()
            if not over or self._members[key].stays or key not in self._ready:
                return
            del self._ready[key]
        for region in self._regions(key):
            region.drop()

    def _window(self) -> int:
        return WINDOW if self._budget is None else min(WINDOW, self._budget // 2)

    def _missing(self, key: str) -> list[str]:
        """What is expected next and not ready, as far as the window and the budget go."""
        result: list[str] = []
        ahead = 0
        with self._lock:
            room = None if self._budget is None else self._budget - sum(self._ready.values())
            for following in self._order.after(key):
                size = self._size(following)
                ahead += size
                if ahead > self._window() and result:
                    break
                if following in self._ready:
                    continue
                if room is not None:
                    room -= self._counted(following)
                    if room < 0:
                        break
                result.append(following)
                if ahead > self._window():
                    break
        return result

    def _prepare(self, key: str, following: Iterator[str]) -> None:
        """On the worker: ask for all of the window, then enter it into memory group by group."""
        wanted = []
        ahead = 0
        for name in following:
            ahead += self._size(name)
            wanted.append(name)
            if ahead > self._window():
                break
        for name in wanted:
            for region in self._regions(name):
                region.will_need()
        for name in wanted:
            with self._lock:
                known = name in self._ready
                counted = 0 if known else self._counted(name)
                if self._budget is not None and sum(self._ready.values()) + counted > self._budget:
                    return
                self._ready[name] = self._counted(name)
            for region in () if known else self._regions(name):
                region.make_ready()

    def _counted(self, key: str) -> int:
        """Bytes that a module takes of the budget."""
        return 0 if self._members[key].stays else self._size(key)

    def _size(self, key: str) -> int:
        size = self._sizes.get(key)
        if size is None:
            size = sum(region.size for region in self._regions(key))
            if key in self._groups:
                self._sizes[key] = size
        return size

    def _regions(self, key: str) -> list[Region]:
        """The mapped memory of a module's tensors, looked up once. What torch.func puts in their place for a while does not count."""
        found = self._groups.get(key)
        if found is None:
            member = self._members[key]
            slots = all_slots(member.module) if member.whole else own_slots(member.module)
            tensors = [slot.tensor for slot in slots]
            if any(is_transformed(tensor) for tensor in tensors):
                return []
            regions = (region_of(tensor) for tensor in tensors)
            found = self._groups[key] = merged(region for region in regions if region is not None)
        return found
