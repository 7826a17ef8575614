"""The prepared loader: this rank's share of another loader, on the device, with its end known while the last batch is used."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from torch.utils.data import DataLoader, IterableDataset

from accelkit.runtime.data.adopted import adopt_batches, script_loader
from accelkit.runtime.data.batches import RankBatches
from accelkit.runtime.data.feeds import Feed, MapFeed, StreamFeed
from accelkit.runtime.data.progress import Progress
from accelkit.runtime.data.sampler import IsolatedSampler
from accelkit.runtime.data.shard import Plan, Tail
from accelkit.runtime.data.stream import RoundCollate, StreamShare, WorkerStart
from accelkit.runtime.errors import SettingError

Move = Callable[[Any], Any]


class LoopState(Protocol):
    """Who wants to know which iteration is running."""

    @property
    def in_dataloader(self) -> bool:
        """Whether any is."""

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

    def note_backward(self) -> None:
        """Gradients are computed in it: the loader is one for training."""
        self.loader.progress.trains = True


class PreparedLoader(DataLoader[Any]):
    """What `Accelerator.prepare` makes of a loader.

    It composes a copy of the script's loader that reads this rank's batches only. All other attributes are those of the
    script's loader, and `isinstance` holds for its class. Iterating again starts the next epoch; `set_epoch` chooses one.
    """

    def __init__(self, feed: Feed, *, progress: Progress, state: LoopState | None, move: Move | None) -> None:
        self.base = feed.base
        self.feed = feed
        """Where batches come from."""
        self.progress = progress
        """Epoch and position, shared by all views of the loader."""
        self.state = state
        self.move = move
        """What puts a batch on the device; None: batches stay where they are."""
        self.before_epoch: Callable[[], None] | None = None
        """What all ranks do before each epoch."""
        self._skip: int | None = None
        """Steps that the first iteration leaves out; None: it begins where the progress says."""
        self._used = False

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The class of the loader that was prepared: `isinstance` tells no difference."""
        return type(self._script or self.base)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "base" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._script or self.base, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (self.__dict__.copy(),)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self.__reduce__()

    @property
    def plan(self) -> Plan:
        """How batches are dealt to ranks."""
        return self.feed.plan

    @property
    def is_own(self) -> bool:
        """Whether it is no share of what all ranks read: ranks' batches may be of different lengths in any step."""
        ranked = self._ranked
        return self.plan.size == 1 and (ranked is None or not ranked.is_dealt)

    @property
    def _ranked(self) -> RankBatches | None:
        for candidate in (self.base.batch_sampler, self.base.sampler):
            if isinstance(candidate, RankBatches):
                return candidate
        return None

    @property
    def _script(self) -> Any:
        """The script's loader that iterates in a way of its own, of which ready batches are taken; None where there is no such loader."""
        return script_loader(self.base)

    @property
    def batch_sampler(self) -> Any:  # type: ignore[override]
        """The batch sampler that all ranks share out, the script's own where it gave one; None where the data set makes the batches."""
        ranked, base = self._ranked, self._script or self.base
        found = base.batch_sampler
        if ranked is not None and found is ranked:
            found = ranked.inner
        return found.inner if isinstance(found, IsolatedSampler) else found

    @property
    def sampler(self) -> Any:  # type: ignore[override]
        """The sampler in use, with its order that is the same on every rank."""
        ranked = self._ranked
        if ranked is None:
            base = self._script or self.base
            return getattr(base.batch_sampler, "sampler", base.sampler)
        return getattr(ranked.inner, "sampler", ranked.inner)

    @property
    def batch_size(self) -> int | None:  # type: ignore[override]
        """Samples in a full batch of one rank; None where it is not known."""
        script = self._script
        return self.plan.share if script is None or self.plan.split else script.batch_size

    @property
    def drop_last(self) -> bool:  # type: ignore[override]
        """Whether an incomplete last batch is left out."""
        return self.plan.drop_last

    @property
    def collate_fn(self) -> Any:  # type: ignore[override]
        """The function that makes a batch of samples."""
        found = (self._script or self.base).collate_fn
        return found.inner if isinstance(found, RoundCollate) else found

    @property
    def worker_init_fn(self) -> Any:  # type: ignore[override]
        """The script's function for starting workers."""
        found = (self._script or self.base).worker_init_fn
        return found.inner if isinstance(found, WorkerStart) else found

    @property
    def dataset(self) -> Any:  # type: ignore[override]
        """The data set, whole."""
        found = (self._script or self.base).dataset
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
        """Steps of this rank in a whole epoch; of a view that skips, those of its first epoch until the next one."""
        return max(0, self.feed.count_steps() - (self._skip or 0))

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration is: shuffling follows it, and data sets and samplers are told."""
        self.progress.choose(epoch)

    def set_even(self, even: bool) -> None:
        """Change whether ranks are made even at the end of epochs, from the next epoch on."""
        self.feed.set_even(even)

    @property
    def trains(self) -> bool:
        """Whether gradients were computed in a loop of it, by `Accelerator.backward`."""
        return self.progress.trains

    def state_dict(self, *, left_is_over: bool = False) -> dict[str, Any]:
        """Where the loader is, for `load_state_dict` of a loader like this in another process, on any number of ranks.

        The batch in use counts as done. A loop that was left is where it was left; in the loop of another loader, or with `left_is_over`,
        it is over, as it is when the script goes on. Plain numbers, texts, lists and tensors: `torch.load(weights_only=True)` takes them.
        """
        in_another = self.state is not None and self.state.in_dataloader
        return self.progress.state_dict(left_is_over=left_is_over or in_another)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Make the next iteration go on where the state was saved; after a whole epoch that is the next one.

        Map-style data starts there at once; so do streams whose data set has state_dict and load_state_dict; other streams
        are read up to there. Raises SettingError for the state of a loader of another kind.
        """
        self.progress.load_state_dict(state_dict)

    def skipped(self, steps: int) -> PreparedLoader:
        """A view whose next epoch leaves out its first `steps` steps, once; it shares epochs with this loader.

        The steps are counted from the beginning of the epoch, also where a state was loaded that is somewhere else in it.
        """
        view = copy.copy(self)
        view.__dict__.update(_skip=steps + (0 if self._used else self._skip or 0), _used=False)
        return view

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if self._used:
            self._skip = None
        self._used = True
        if self.before_epoch is not None:
            self.before_epoch()
        loop, run = Iteration(self), self.progress.begin(self._skip)
        state, move = self.state, self.move
        try:
            for batch, loop.tail, loop.at_end, marks in self.feed.steps(run.origin):
                run.steps += 1
                if marks:
                    run.mark(marks)
                if move is not None:
                    batch = move(batch)  # noqa: PLW2901  (the same batch, elsewhere)
                if state is not None:
                    state.enter(loop)
                yield batch
            run.finished = True
        finally:
            run.left = True
            if state is not None:
                state.leave(loop)


def _revive(attributes: dict[str, Any]) -> PreparedLoader:
    made = PreparedLoader.__new__(PreparedLoader)
    made.__dict__.update(attributes)
    return made


def skip_first_batches(dataloader: Any, num_batches: int = 0) -> Any:
    """A view of a loader whose next epoch leaves out its first `num_batches` batches of this rank; later epochs are whole.

    Works on prepared loaders and on plain ones. With torch's own samplers nothing that is skipped is read or drawn; streams
    are read up to there. Raises TypeError for anything else, and SettingError for a negative number.
    """
    if num_batches < 0:
        raise SettingError(
            f"skip_first_batches: num_batches={num_batches}, and must be 0 or more",
            hint="give the number of batches of this rank that the next epoch leaves out",
        )
    if type(dataloader) is PreparedLoader:
        return dataloader.skipped(num_batches)
    if not isinstance(dataloader, DataLoader):
        raise TypeError(f"skip_first_batches needs a torch DataLoader, not {type(dataloader).__name__}")
    return as_it_is(dataloader).skipped(num_batches)


def as_it_is(loader: DataLoader[Any]) -> PreparedLoader:
    """A loader that was not prepared, in the form that can skip: all batches, on no particular device."""
    loader = adopt_batches(loader)
    attribute = "sampler" if loader.batch_sampler is None else "batch_sampler"
    inner = getattr(loader, attribute)
    plan = Plan(rank=0, size=1, batch_size=loader.batch_size, drop_last=loader.drop_last, even=False, split=False)
    feed = (
        make_stream_feed(loader, plan)
        if isinstance(loader.dataset, IterableDataset)
        else make_map_feed(loader, attribute, RankBatches(inner, plan))
    )
    return PreparedLoader(feed, progress=Progress(feed, inner), state=None, move=None)


def make_map_feed(loader: DataLoader[Any], attribute: str, ranked: RankBatches) -> MapFeed:
    """A feed of a copy of the loader in which our batch sampler takes the place of `attribute`."""
    base = copy.copy(loader)
    base.__dict__.update({attribute: ranked, "_iterator": None})
    return MapFeed(base, ranked)


def make_stream_feed(loader: DataLoader[Any], plan: Plan, *, every: bool = False) -> StreamFeed:
    """A feed of a copy of the loader whose reading processes make rounds of their streams."""
    base, share = copy.copy(loader), StreamShare(loader.dataset, plan, every=every)
    base.__dict__.update(
        dataset=share,
        batch_sampler=None,  # what the data set yields is a round, whole
        batch_size=None,
        drop_last=False,
        collate_fn=RoundCollate(loader.collate_fn),
        worker_init_fn=WorkerStart(loader.worker_init_fn),
        _iterator=None,
    )
    return StreamFeed(base, share)
