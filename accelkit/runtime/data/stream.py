"""Streams: every reading process goes through its whole stream and keeps the share of its rank of each round.

A worker process has a stream of its own (whatever the data set makes of `get_worker_info`), and makes whole rounds of it, so
that a round comes from the same worker on every rank.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from accelkit.runtime.data import cut, shard
from accelkit.runtime.data.shard import Plan, Tail


@dataclass(frozen=True)
class Place:
    """How far one stream has been read."""

    read: int = 0
    """Samples, or ready batches where the data set makes them."""
    state: Any = None
    """What the data set's `state_dict` said there; None where it has none."""


@dataclass(frozen=True)
class Start:
    """Where an epoch begins."""

    places: Sequence[Place] = (Place(),)
    """Of each worker's stream; of the only one without workers."""
    rotation: int = 0
    """The worker whose turn it is first."""


@dataclass(frozen=True)
class Mark:
    """Where a stream stands behind a round."""

    worker: int
    place: Place


@dataclass
class Raw:
    """The samples (or ready batch) of each rank that was asked for in a round, on their way to the collate function."""

    parts: list[Any]
    tail: Tail | None
    marks: tuple[Mark, ...]
    """Behind the round; behind each part where some ranks have none in it."""


@dataclass
class Delivered:
    """The same, collated, on its way from the reading process."""

    values: list[Any]
    tail: Tail | None
    marks: tuple[Mark, ...]

    def pin_memory(self) -> "Delivered":
        """Pin what is inside."""
        from torch.utils.data._utils.pin_memory import pin_memory

        return replace(self, values=[pin_memory(value) for value in self.values])  # type: ignore[no-untyped-call]


class StreamShare(IterableDataset[Raw]):
    """The rounds of a stream, with the shares of one rank (of all, with `every`)."""

    def __init__(self, dataset: Any, plan: Plan, *, every: bool = False) -> None:
        self.dataset = dataset
        self.plan = plan
        self.start = Start()
        """Where the next iteration begins; every later one begins at the beginning."""
        self.every = every

    def __iter__(self) -> Iterator[Raw]:
        start, self.start = self.start, Start()
        info = get_worker_info()
        worker = 0 if info is None else info.id
        return self._read(worker, start.places[worker] if worker < len(start.places) else Place())

    def _read(self, worker: int, place: Place) -> Iterator[Raw]:
        plan = self.plan
        first, items = self._enter(place)
        places: deque[Place] = deque()
        batches = self._follow(items, place.read, places)
        rounds: Iterator[shard.Round]
        if plan.batch_size is None and plan.split and plan.size > 1:
            rounds = (cut.slices(batch, plan.size) for batch in batches)
        else:
            rounds = shard.deal(batches, plan, shard.everyone(plan), first=first, measure=cut.count)
        for shares, tail in rounds:
            passed = [places.popleft() for _ in range(min(plan.per_round, len(places)))]
            if tail is not None and tail.absent:
                marks = _mark_slices(passed[-1], tail) if plan.split else passed
                yield Raw(shares, tail, tuple(Mark(worker, place) for place in marks))
            elif parts := shares if self.every else shares[plan.rank : plan.rank + 1]:
                yield Raw(parts, tail, (Mark(worker, passed[-1]),))

    def _enter(self, place: Place) -> tuple[list[Any], Iterator[Any]]:
        """The batches of the epoch's first round where they are needed, and the stream from a place on.

        The place is sought where the data set can, else read up to. The first round fills the last one, of a stream that does not start
        with it. A data set's position may live on the data set: reading goes on where it stopped, and begins anew only to seek.
        """
        plan = self.plan
        items: Iterator[Any] = iter(self.dataset)
        if not place.read:
            return [], items
        needed = plan.per_round * (plan.batch_size or 1)
        if plan.size == 1 or plan.drop_last or not plan.even:
            needed = 0
        head = list(islice(items, needed))
        first = list(_chunks(iter(head), plan.batch_size, drop_last=False))
        if place.state is not None:
            self.dataset.load_state_dict(place.state)
            return first, iter(self.dataset)
        if place.read < len(head):
            return first, islice(iter(self.dataset), place.read, None)
        return first, islice(items, place.read - len(head), None)

    def _follow(self, items: Iterator[Any], read: int, places: "deque[Place]") -> Iterator[Any]:
        """The batches of a stream; for each, the place behind it goes into the queue."""
        state_dict = getattr(self.dataset, "state_dict", None) if hasattr(self.dataset, "load_state_dict") else None
        size = self.plan.batch_size
        for chunk in _chunks(items, size, self.plan.drop_last):
            read += 1 if size is None else len(chunk)
            places.append(Place(read, None if state_dict is None else state_dict()))
            yield chunk


def _chunks(items: Iterator[Any], size: int | None, drop_last: bool) -> Iterator[Any]:
    if size is None:
        yield from items
        return
    least = size if drop_last else 1
    while len(chunk := list(islice(items, size))) >= least:
        yield chunk


def _mark_slices(behind: Place, tail: Tail) -> list[Place]:
    """The places behind the slices of a batch, of which the last is `behind` the whole."""
    counts = [count for count in tail.counts if count]
    within = [Place(behind.read - sum(counts[index:])) for index in range(1, len(counts))]
    return [*within, behind]


def regroup(delivered: Iterator[Delivered], plan: Plan, *, every: bool = False) -> Iterator[Delivered]:
    """Rounds with the shares of one rank (of all, with `every`), of which only the last one may lack shares of some ranks.

    Every worker's stream may end with such a round. Their shares are held back, and make common rounds at the end of the epoch: a rank
    without a share then has had its last one, and ranks are in the same round at any time.
    """
    held: list[tuple[Any, int, Mark]] = []
    for one in delivered:
        if one.tail is not None and one.tail.absent:
            counts = one.tail.counts[: len(one.values)]
            held += zip(one.values, counts, one.marks, strict=True)
        else:
            yield one
    held.sort(key=lambda share: share[2].worker)  # as ever, also where the epoch was entered in its middle
    for start in range(0, len(held), plan.size):
        values, counts, marks = zip(*held[start : start + plan.size], strict=True)
        padded = (*counts, *[0] * (plan.size - len(counts)))
        mine = values if every else values[plan.rank : plan.rank + 1]
        if mine:
            yield Delivered(list(mine), Tail(padded, padded, tuple(range(len(counts), plan.size))), marks)


class RoundCollate:
    """A collate function for rounds, around that for batches."""

    def __init__(self, inner: Callable[[Any], Any]) -> None:
        self.inner = inner

    def __call__(self, raw: Raw) -> Delivered:
        """Collate the samples, or convert the ready batch, of every rank."""
        return Delivered([self.inner(part) for part in raw.parts], raw.tail, raw.marks)


class WorkerStart:
    """A worker_init_fn around the script's: a worker sees the script's data set, and the number of the stream that it reads."""

    def __init__(self, inner: Callable[[int], None] | None) -> None:
        self.inner = inner

    def __call__(self, worker: int) -> None:
        """Take the place of the worker that would have been here had the epoch begun at its beginning."""
        info: Any = get_worker_info()
        share = info.dataset
        number = (worker + share.start.rotation) % info.num_workers
        object.__setattr__(info, "dataset", share.dataset)
        object.__setattr__(info, "id", number)
        if self.inner is not None:
            self.inner(number)
