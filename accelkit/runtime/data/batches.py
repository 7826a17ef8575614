"""The batch sampler of a prepared loader: ranks' batches out of another batch sampler, which it wraps and never rebuilds."""

from collections import deque
from collections.abc import Iterator, Sized
from dataclasses import replace
from itertools import chain, islice
from typing import Any, cast

from torch.utils.data import BatchSampler, Sampler

from accelkit.runtime.data import sampler as samplers
from accelkit.runtime.data import shard
from accelkit.runtime.data.shard import Plan, Round, Tail
from accelkit.runtime.errors import SettingError

Opened = tuple[int, Tail | None]
"""How many batches of a round follow, and the round's tail."""


class RankBatches(Sampler[Any]):
    """Yields what one rank works on (or all ranks, with `every`), round by round; it leaves the tail of each round in a queue.

    Positions in an epoch count samples of all ranks where torch's own batch sampler cuts batches out of an order, and batches of
    the inner sampler where batches are made otherwise.
    """

    def __init__(self, inner: Any, plan: Plan, *, every: bool = False) -> None:
        self.inner = inner
        self.plan = plan
        self._every = every
        self._start = 0
        self._rounds: deque[Opened] = deque()
        self._dealt = samplers.distributed_part(inner)
        """The sampler that has divided the data already; None where we do."""
        isolated = isinstance(inner, samplers.IsolatedSampler)
        self._core = inner.inner if isolated else inner
        self._isolation = inner if isolated else None

    @property
    def counts_samples(self) -> bool:
        """Whether positions count samples, not batches."""
        return type(self._core) is BatchSampler

    @property
    def is_dealt(self) -> bool:
        """Whether a DistributedSampler has divided the data among the ranks."""
        return self._dealt is not None

    @property
    def per_step(self) -> int:
        """How far a full step moves the position."""
        if self._dealt is not None:
            return self._core.batch_size * self._dealt.num_replicas if self.counts_samples else 1
        return self.plan.per_round * (self._core.batch_size if self.counts_samples else 1)

    def begin(self, start: int) -> "deque[Opened]":
        """Prepare the next iteration, which begins at position `start`; returns the queue that it will fill, one entry per round."""
        self._start = start
        self._rounds = deque()
        return self._rounds

    def set_even(self, even: bool) -> None:
        """Change how the epoch ends, from the next iteration on."""
        self.plan = replace(self.plan, even=even)

    def __len__(self) -> int:
        if self._dealt is not None:
            return len(self.inner)
        samples = len(cast("Sized", self._core.sampler)) if self.counts_samples else None
        return shard.count_rounds(len(self.inner), self.plan, samples)

    def __iter__(self) -> Iterator[Any]:
        rounds = self._open(self._start)
        if self._isolation is not None:
            rounds = self._isolation.guard(rounds)
        return self._run(rounds, self._rounds)

    def _run(self, rounds: Iterator[Round], queue: "deque[Opened]") -> Iterator[Any]:
        for shares, tail in rounds:
            queue.append((len(shares), tail))
            yield from shares

    def _open(self, start: int) -> Iterator[Round]:
        if self._dealt is not None:
            yield from self._open_dealt(start)
            return
        plan, core = self.plan, self._core
        ranks = shard.everyone(plan) if self._every else shard.own(plan)
        if not self.counts_samples:
            first, batches = _enter(self._walk(core), start, plan.per_round)
            yield from shard.deal(batches, plan, ranks, first=first)
            return
        order = samplers.order_of(core.sampler)
        if order is not None:
            yield from shard.deal_order(order.take, order.length, plan, ranks, start)
            if order.finish is not None:
                order.finish()
            return
        indices, batches = _enter(self._walk(core.sampler), start, self.per_step)
        first = list(BatchSampler(samplers.Once(iter(indices)), core.batch_size, drop_last=False))
        rest = iter(BatchSampler(samplers.Once(batches), core.batch_size, core.drop_last))
        yield from shard.deal(rest, plan, ranks, first=first)

    def _walk(self, sampler: Any) -> Iterator[Any]:
        items: Iterator[Any] = iter(sampler)
        return items if self._isolation is None else self._isolation.watch(items)

    def _open_dealt(self, start: int) -> Iterator[Round]:
        dealt, core = self._dealt, self._core
        skip = start
        if self.counts_samples:
            skip, rest = divmod(start, dealt.num_replicas)
            if rest:
                raise SettingError(
                    f"sample {start} of the epoch does not lie between two steps of {dealt.num_replicas} ranks, among which a "
                    "DistributedSampler deals samples one by one",
                    hint="resume on the number of ranks that the state was saved on, or leave the DistributedSampler out",
                )
            indices = islice(core.sampler, skip, None)
            batches = iter(BatchSampler(samplers.Once(indices), core.batch_size, core.drop_last))
        else:
            batches = islice(core, skip, None)
        yield from shard.mark_padding(
            batches,
            replicas=dealt.num_replicas,
            length=len(dealt.dataset),
            per_rank=dealt.num_samples,
            seen=skip if self.counts_samples else 0,
        )


def _enter(items: Iterator[Any], start: int, head: int) -> tuple[list[Any], Iterator[Any]]:
    """The first `head` items (none when the start is the very first), and all from `start` on."""
    if start == 0:
        return [], items
    first = list(islice(items, head))
    if start <= len(first):
        return first, chain(first[start:], items)
    return first, islice(items, start - len(first), None)
