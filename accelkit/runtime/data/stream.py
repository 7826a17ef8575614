"""Streams: every rank reads the whole of an iterable data set and keeps its share of each round."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from torch.utils.data import IterableDataset

from accelkit.runtime.data.shard import Plan, Tail, deal


class Tailed:
    """A sample, or a batch, of a round that is not complete: travels from the reading (worker) process with what is known of the round."""

    def __init__(self, value: Any, tail: Tail) -> None:
        self.value = value
        self.tail = tail

    def pin_memory(self) -> "Tailed":
        """Pin what is inside."""
        from torch.utils.data._utils.pin_memory import pin_memory

        return Tailed(pin_memory(self.value), self.tail)  # type: ignore[no-untyped-call]


class StreamShare(IterableDataset[Any]):
    """This rank's share of a stream."""

    def __init__(self, dataset: Any, plan: Plan) -> None:
        self.dataset = dataset
        self.plan = plan

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[Any]:
        plan, items = self.plan, iter(self.dataset)
        if plan.batch_size is None:
            yield from (item if tail is None else Tailed(item, tail) for item, tail in deal(items, plan))
            return
        for share, tail in deal(_chunks(items, plan.batch_size, plan.drop_last), plan):
            yield from share if tail is None else (Tailed(item, tail) for item in share)


def _chunks(items: Iterator[Any], size: int, drop_last: bool) -> Iterator[list[Any]]:
    least = size if drop_last else 1
    while len(chunk := list(islice(items, size))) >= least:
        yield chunk


class TailedCollate:
    """A collate function that takes samples out of their wrapping and puts the batch into one, where there is any."""

    def __init__(self, inner: Callable[[Any], Any], *, whole: bool) -> None:
        self.inner = inner
        self.whole = whole
        """The argument is one ready batch, not a list of samples."""

    def __call__(self, items: Any) -> Any:
        """Collate samples, or convert a ready batch."""
        if self.whole:
            if isinstance(items, Tailed):
                return Tailed(self.inner(items.value), items.tail)
            return self.inner(items)
        if items and isinstance(items[-1], Tailed):
            return Tailed(self.inner([item.value for item in items]), items[-1].tail)
        return self.inner(items)
