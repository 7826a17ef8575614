"""Where a prepared loader takes its batches from: an iteration of the loader inside, for this rank or for all."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader

from accelkit.runtime.data.batches import RankBatches
from accelkit.runtime.data.shard import Plan, Tail, count_rounds
from accelkit.runtime.data.stream import Delivered, Mark, Place, Start, StreamShare, regroup

Delivery = tuple[list[Any], Tail | None, tuple[Mark, ...]]
"""The batches of a round, its tail, and where streams stand behind it."""

Step = tuple[Any, Tail | None, bool, tuple[Mark, ...]]
"""What one rank works on, the tail of the round, whether it is the last, and where streams stand behind it."""


@dataclass(frozen=True)
class Origin:
    """Where an iteration begins."""

    position: int = 0
    """In samples of all ranks, or in batches; see `Feed.per_step`."""
    start: Start | None = None
    """Where exactly streams were left; None: at the position."""
    resumed: bool = False
    """The epoch has begun elsewhere, so that its beginning draws nothing from torch's generator here."""


class Feed(ABC):
    """Delivers epochs. Positions are counted in `per_step`: samples of all ranks, or batches."""

    base: DataLoader[Any]
    plan: Plan
    counts_samples: bool
    per_step: int

    @abstractmethod
    def read(self, origin: Origin) -> Iterator[Delivery]:
        """The rounds of an epoch."""

    @abstractmethod
    def count_steps(self) -> int:
        """Steps of this rank in a whole epoch. Raises TypeError where that is not known."""

    @abstractmethod
    def set_even(self, even: bool) -> None:
        """Change how epochs end, from the next one on."""

    def rounds(self, origin: Origin) -> Iterator[Delivery]:
        """The same, with random numbers that go on where they were."""
        rounds = self.read(origin)
        return _quietly(rounds) if origin.resumed else rounds

    def steps(self, origin: Origin) -> Iterator[Step]:
        """The steps of this rank, read one ahead so that the last one is known."""
        for (values, tail, marks), at_end in look_ahead(self.rounds(origin)):
            yield values[0], tail, at_end, marks

    def renew(self) -> None:
        """Let go of workers that persist: what they hold is out of date."""
        self.base.__dict__["_iterator"] = None


def look_ahead(items: Iterator[Delivery]) -> Iterator[tuple[Delivery, bool]]:
    """Each item, and whether it is the last."""
    upcoming = next(items, None)
    while upcoming is not None:
        current, upcoming = upcoming, next(items, None)
        yield current, upcoming is None


def _quietly(rounds: Iterator[Delivery]) -> Iterator[Delivery]:
    """Rounds of which the first, which the generator's state of the checkpoint has behind it, draws nothing from it."""
    outside = torch.get_rng_state()
    first = next(rounds, None)
    torch.set_rng_state(outside)
    if first is not None:
        yield first
        yield from rounds


class MapFeed(Feed):
    """Batches that a batch sampler of ours asks for."""

    def __init__(self, base: DataLoader[Any], ranked: RankBatches) -> None:
        self.base = base
        self.ranked = ranked
        self.counts_samples = ranked.counts_samples
        self.per_step = ranked.per_step

    @property
    def plan(self) -> Plan:  # type: ignore[override]
        """How batches are dealt."""
        return self.ranked.plan

    def count_steps(self) -> int:
        """As the batch sampler counts them."""
        return len(self.ranked)

    def set_even(self, even: bool) -> None:
        """The batch sampler deals."""
        self.ranked.set_even(even)

    def read(self, origin: Origin) -> Iterator[Delivery]:
        """Batches as they come, put together to rounds."""
        queue = self.ranked.begin(origin.position)
        batches = iter(self.base)
        for batch in batches:
            count, tail = queue.popleft()
            values = [batch]
            while len(values) < count:
                values.append(next(batches))
            yield values, tail, ()


class StreamFeed(Feed):
    """Rounds that reading processes make of their streams."""

    def __init__(self, base: DataLoader[Any], share: StreamShare) -> None:
        self.base = base
        self.share = share
        self.counts_samples = share.plan.batch_size is not None
        self.per_step = share.plan.per_round * (share.plan.batch_size or 1)
        self._rotated = False

    @property
    def plan(self) -> Plan:  # type: ignore[override]
        """How batches are dealt."""
        return self.share.plan

    def count_steps(self) -> int:
        """From the length that the data set says it has."""
        plan, total = self.plan, len(self.share.dataset)
        size = plan.batch_size or 1
        batches = total // size if plan.drop_last else -(-total // size)
        return count_rounds(batches, plan, total)

    def set_even(self, even: bool) -> None:
        """The reading processes deal: those that persist are replaced."""
        self.share.plan = replace(self.plan, even=even)
        self.renew()

    def read(self, origin: Origin) -> Iterator[Delivery]:
        """Rounds as they come. Without a start, workers' streams are read up to the position."""
        skip, start = 0, origin.start
        if start is None and self.base.num_workers > 1:
            skip = origin.position // self.per_step
        elif start is None:
            start = Start((Place(origin.position),))
        source = self._begin(start or Start())
        passed: dict[int, Mark] = {}
        for delivered in islice(source, skip):
            passed.update((mark.worker, mark) for mark in delivered.marks)
        for delivered in source:
            marks = (*passed.values(), *delivered.marks)
            passed.clear()
            yield delivered.values, delivered.tail, marks

    def _begin(self, start: Start) -> Iterator[Delivered]:
        elsewhere = start != Start()
        if elsewhere or self._rotated:
            self.renew()
        self.share.start, self._rotated = start, elsewhere
        source = iter(self.base)
        self.share.start = Start()
        return regroup(source, self.plan, every=self.share.every)
