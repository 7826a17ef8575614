"""The batch sampler of a prepared loader: this rank's batches out of another batch sampler, which it wraps and never rebuilds."""

from collections import deque
from collections.abc import Iterator, Sized
from dataclasses import replace
from typing import Any, cast

from torch.utils.data import BatchSampler, Sampler

from accelkit.runtime.data import sampler as samplers
from accelkit.runtime.data.shard import Plan, Share, Tail, count_rounds, deal, mark_padding


class RankBatches(Sampler[Any]):
    """Yields what one rank works on, step by step; beside each batch it leaves the tail of its round in a queue."""

    def __init__(self, inner: Any, plan: Plan) -> None:
        self.inner = inner
        self.plan = plan
        self._skip = 0
        self._tails: deque[Tail | None] = deque()
        self._dealt = samplers.distributed_part(inner)
        """The sampler that has divided the data already; None where we do."""

    def begin(self, skip: int) -> "deque[Tail | None]":
        """Prepare the next iteration, which leaves out `skip` steps; returns the queue that it will fill, a tail per batch."""
        self._skip = skip
        self._tails = deque()
        return self._tails

    def set_even(self, even: bool) -> None:
        """Change how the epoch ends, from the next iteration on."""
        self.plan = replace(self.plan, even=even)

    def __len__(self) -> int:
        if self._dealt is not None:
            return len(self.inner)
        return count_rounds(len(self.inner), self.plan, _count_samples(self.inner))

    def __iter__(self) -> Iterator[Any]:
        return self._run(self._skip, self._tails)

    def _run(self, skip: int, tails: "deque[Tail | None]") -> Iterator[Any]:
        for batch, tail in self._shares(skip):
            tails.append(tail)
            yield batch

    def _shares(self, skip: int) -> Iterator[Share]:
        plan = self.plan
        if self._dealt is not None:
            _, batches = samplers.open_batches(self.inner, skip, 0)
            dealt = self._dealt
            return mark_padding(
                batches,
                replicas=dealt.num_replicas,
                length=len(dealt.dataset),
                per_rank=dealt.num_samples,
                seen=skip * (plan.batch_size or 0),
            )
        first, batches = samplers.open_batches(self.inner, skip * plan.per_round, plan.per_round)
        return deal(batches, plan, first)


def _count_samples(inner: Any) -> int | None:
    return len(cast("Sized", inner.sampler)) if type(inner) is BatchSampler else None
