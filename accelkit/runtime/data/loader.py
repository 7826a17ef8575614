"""The prepared loader: this rank's share of another loader, on the device, with its end known while the last batch is used."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from torch.utils.data import DataLoader, IterableDataset

from accelkit.runtime.data.batches import RankBatches
from accelkit.runtime.data.epochs import Epochs
from accelkit.runtime.data.shard import Plan, Tail, count_rounds
from accelkit.runtime.data.stream import StreamShare, Tailed

Move = Callable[[Any], Any]


class LoopState(Protocol):
    """Who wants to know which iteration is running."""

    def enter(self, iteration: Any) -> None:
        """An iteration begins, or moves on."""

    def leave(self, iteration: Any) -> None:
        """An iteration is over."""


class Iteration:
    """One running iteration over a prepared loader."""

    def __init__(self, loader: PreparedLoader) -> None:
        self.loader = loader
        self.at_end = False
        """Whether the batch in use is the last one."""
        self.tail: Tail | None = None
        """Of the batch in use, where its round is not complete."""

    @property
    def remainder(self) -> int:
        """Real samples in the last round when it is not full, 0 when it is, -1 when that is not known."""
        return self.tail.real if self.tail is not None else 0


class PreparedLoader(DataLoader[Any]):
    """What `Accelerator.prepare` makes of a loader.

    It composes a copy of the script's loader that reads this rank's batches only. All other attributes are those of the
    script's loader, and `isinstance` holds for its class. Iterating again starts the next epoch; `set_epoch` chooses one.
    """

    def __init__(
        self, base: DataLoader[Any], *, plan: Plan, epochs: Epochs, state: LoopState | None, move: Move | None
    ) -> None:
        self.base = base
        self.plan = plan
        self.epochs = epochs
        """Shared by all views of the loader."""
        self.state = state
        self._move = move
        self._skip = 0
        self._used = False

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The class of the loader that was prepared: `isinstance` tells no difference."""
        return type(self.base)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "base" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.base, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (self.__dict__.copy(),)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self.__reduce__()

    @property
    def ranked(self) -> RankBatches | None:
        """Where this rank's batches come from; None for streams."""
        for candidate in (self.base.batch_sampler, self.base.sampler):
            if isinstance(candidate, RankBatches):
                return candidate
        return None

    @property
    def batch_sampler(self) -> Any:  # type: ignore[override]
        """The batch sampler that all ranks share out; None where the data set makes the batches."""
        ranked = self.ranked
        return ranked.inner if ranked is not None and self.base.batch_sampler is ranked else self.base.batch_sampler

    @property
    def sampler(self) -> Any:  # type: ignore[override]
        """The sampler in use, with its order that is the same on every rank."""
        ranked = self.ranked
        if ranked is None:
            return self.base.sampler
        return getattr(ranked.inner, "sampler", ranked.inner)

    @property
    def batch_size(self) -> int | None:  # type: ignore[override]
        """Samples in a full batch of one rank; None where it is not known."""
        return self.plan.share

    @property
    def dataset(self) -> Any:  # type: ignore[override]
        """The data set, whole."""
        found = self.base.dataset
        return found.dataset if isinstance(found, StreamShare) else found

    @property
    def total_batch_size(self) -> int:
        """Samples in a full batch of all ranks together; 0 where it is not known."""
        return (self.plan.share or 0) * self.plan.size

    @property
    def total_dataset_length(self) -> int:
        """Samples in the data set. Raises TypeError for a stream without a length."""
        return len(self.dataset)

    def __len__(self) -> int:
        """Steps of this rank in the coming epoch (in the running one, while a view that skips is iterated)."""
        ranked = self.ranked
        return max(0, (self._stream_length() if ranked is None else len(ranked)) - self._skip)

    def _stream_length(self) -> int:
        total, size = len(self.dataset), self.plan.batch_size or 1
        batches = total // size if self.plan.drop_last else -(-total // size)
        return count_rounds(batches, self.plan, total)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration is: shuffling follows it, and data sets and samplers are told."""
        self.epochs.choose(epoch)

    def skipped(self, steps: int) -> PreparedLoader:
        """A view whose next epoch leaves out its first `steps` steps, once; it shares epochs with this loader."""
        view = copy.copy(self)
        view.__dict__.update(_skip=steps + (0 if self._used else self._skip), _used=False)
        return view

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        run, (source, tails) = Iteration(self), self._begin()
        state, move, end = self.state, self._move, object()
        upcoming = next(source, end)
        try:
            while upcoming is not end:
                batch, run.tail = upcoming, (tails.popleft() if tails else None)
                upcoming = next(source, end)
                run.at_end = upcoming is end
                if type(batch) is Tailed:
                    batch, run.tail = batch.value, batch.tail
                if move is not None:
                    batch = move(batch)
                if state is not None:
                    state.enter(run)
                yield batch
        finally:
            if state is not None:
                state.leave(run)

    def _begin(self) -> tuple[Iterator[Any], deque[Tail | None]]:
        """Start the next epoch: its batches, and the queue of their tails."""
        if self._used:
            self._skip = 0
        self._used = True
        if self.epochs.begin():
            self.base.__dict__["_iterator"] = None  # workers that persist hold the data set of the last epoch
        ranked = self.ranked
        if ranked is not None:
            tails = ranked.begin(self._skip)
            return iter(self.base), tails
        source = iter(self.base)
        for _ in range(self._skip):
            next(source, None)
        return source, deque()


def _revive(attributes: dict[str, Any]) -> PreparedLoader:
    made = PreparedLoader.__new__(PreparedLoader)
    made.__dict__.update(attributes)
    return made


def skip_first_batches(dataloader: Any, num_batches: int = 0) -> Any:
    """A view of a loader whose next epoch leaves out its first `num_batches` batches of this rank; later epochs are whole.

    Works on prepared loaders and on plain ones. With torch's own samplers nothing that is skipped is read or drawn; streams
    are read up to there. Raises TypeError for anything else.
    """
    if type(dataloader) is PreparedLoader:
        return dataloader.skipped(num_batches)
    if not isinstance(dataloader, DataLoader):
        raise TypeError(f"skip_first_batches needs a torch DataLoader, not {type(dataloader).__name__}")
    return as_it_is(dataloader).skipped(num_batches)


def as_it_is(loader: DataLoader[Any]) -> PreparedLoader:
    """A loader that was not prepared, in the form that can skip: all batches, on no particular device."""
    attribute = "sampler" if loader.batch_sampler is None else "batch_sampler"
    inner = getattr(loader, attribute)
    plan = Plan(rank=0, size=1, batch_size=loader.batch_size, drop_last=loader.drop_last, even=False, split=False)
    base = copy.copy(loader)
    base.__dict__["_iterator"] = None
    if not isinstance(loader.dataset, IterableDataset):
        base.__dict__[attribute] = RankBatches(inner, plan)
    return PreparedLoader(base, plan=plan, epochs=Epochs([]), state=None, move=None)
