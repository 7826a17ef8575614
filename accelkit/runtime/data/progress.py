"""Where a loader is: epoch, position, generators. One object per loader, shared by all views of it; checkpoints read and set it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from accelkit.runtime.data import sampler as samplers
from accelkit.runtime.data.feeds import Feed, Origin
from accelkit.runtime.data.stream import Mark, Place, Start, StreamShare
from accelkit.runtime.errors import SettingError

_VERSION = 1


@dataclass
class Run:
    """One iteration of a loader, running or left."""

    epoch: int
    origin: Origin
    steps: int = 0
    """Steps that were given to the script."""
    marks: dict[int, Mark] = field(default_factory=dict)
    """Where each worker's stream stands behind the last of them."""
    last_worker: int | None = None
    generator: torch.Tensor | None = None
    """State of the script's own generator from which the epoch's order was drawn."""
    finished: bool = False
    left: bool = False
    """The script is no longer in the loop."""

    def mark(self, marks: tuple[Mark, ...]) -> None:
        """Note where streams stand."""
        for mark in marks:
            self.marks[mark.worker] = mark
            self.last_worker = mark.worker


class Progress:
    """The epoch counter and the position of one loader. Epochs follow each other by themselves, from 0."""

    def __init__(
        self, feed: Feed, sampler: Any = None, others: Sequence[Any] = (), *, data_changes: bool = False
    ) -> None:
        self.upcoming = 0
        """The epoch that the next iteration is."""
        self._feed = feed
        self.trains = False
        """Whether gradients were computed in a loop of the loader."""
        self._chosen = False
        self._seeded = samplers.seeded(sampler)
        """The sampler of ours whose order follows from seed and epoch."""
        self._generator = samplers.own_generator(sampler)
        self._others = [(other, getattr(other, "epoch", None)) for other in others]
        """The script's objects with a set_epoch, and the epoch we last left them in: told unless the script did it itself."""
        self._data_changes = data_changes
        self._run: Run | None = None
        self._resume: Run | None = None
        """Where the next iteration begins when it does not begin at the beginning."""

    def choose(self, epoch: int) -> None:
        """Make the next iteration epoch `epoch`; everyone concerned is told when it begins."""
        if epoch != self.upcoming:
            self._resume = None
        self.upcoming = epoch
        self._chosen = True

    def begin(self, skip: int | None) -> Run:
        """Tell everyone which epoch begins, and count it. `skip` steps are left out; None: as the state that was loaded says."""
        epoch, chosen = self.upcoming, self._chosen
        resume, self._resume = self._resume, None
        self.upcoming, self._chosen = epoch + 1, False
        if self._seeded is not None:
            self._seeded.set_epoch(epoch)
        for index, (other, left_at) in enumerate(self._others):
            if chosen or getattr(other, "epoch", None) == left_at:
                other.set_epoch(epoch)
                self._others[index] = (other, getattr(other, "epoch", None))
        if self._data_changes:
            self._feed.renew()  # workers that persist hold the data set of the last epoch
        run = Run(epoch, Origin((skip or 0) * self._feed.per_step))
        if skip is None and resume is not None:
            run.origin = resume.origin
            places = () if run.origin.start is None else run.origin.start.places
            run.marks = {index: Mark(index, place) for index, place in enumerate(places)}
        if self._generator is not None:
            run.generator = self._generator.get_state()
        self._run = run
        return run

    def state_dict(self, *, left_is_over: bool = False) -> dict[str, Any]:
        """Epoch and position as plain numbers, texts, lists and tensors: the batch in use counts as done.

        `left_is_over` says that a loop that was left is not gone on with: the next epoch is the next one.
        """
        run, feed = self._run, self._feed
        if self._resume is not None:
            run = self._resume
        elif run is None or run.finished or (run.left and left_is_over):
            generator = None if self._generator is None else self._generator.get_state()
            run = Run(self.upcoming, Origin(), generator=generator)
        return {
            "version": _VERSION,
            "epoch": run.epoch,
            "unit": _unit(feed),
            "position": run.origin.position + run.steps * feed.per_step,
            "length": _length(feed),
            "seed": None if self._seeded is None else self._seeded.data_seed,
            "generator": run.generator,
            "streams": _describe_streams(run, feed.base.num_workers),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration begin where the state says. Raises SettingError for the state of another kind of loader."""
        self._check(state)
        position, start = state["position"], None
        if position:
            start = _restore_streams(state["streams"], self._feed.base.num_workers)
        run = Run(state["epoch"], Origin(position, start, resumed=True), generator=state["generator"])
        if self._seeded is not None:
            self._seeded.data_seed = state["seed"]
        if self._generator is not None:
            self._generator.set_state(state["generator"])
        self.choose(run.epoch)
        self._resume = run if position else None

    def _check(self, state: Mapping[str, Any]) -> None:
        """Refuse what would go on with other samples than those that are left."""
        missing = [
            key for key in ("epoch", "unit", "position", "length", "seed", "generator", "streams") if key not in state
        ]
        if missing or state.get("version") != _VERSION:
            raise SettingError(
                f"this is not the state of a prepared loader (version {_VERSION}): {', '.join(missing) or state.get('version')}",
                hint="give load_state_dict what state_dict of a prepared loader has returned",
            )
        mine = {
            "unit": _unit(self._feed),
            "length": _length(self._feed),
            "seed": self._seeded is not None,
            "generator": self._generator is not None,
        }
        saved = {**state, "seed": state["seed"] is not None, "generator": state["generator"] is not None}
        wrong = [name for name, value in mine.items() if value != saved[name]]
        if state["position"] == 0:
            wrong = [name for name in wrong if name not in ("unit", "length")]
        if wrong:
            texts = ", ".join(f"{_WORDS[name]} {saved[name]!r} and not {mine[name]!r}" for name in wrong)
            raise SettingError(
                f"the loader's state is that of another loader: {texts}",
                hint="make the loader with the data set, sampler and kind of batches that it had when the state was saved",
            )


_WORDS = {
    "unit": "its position counts",
    "length": "its data set has a length of",
    "seed": "its shuffling has a seed:",
    "generator": "its sampler has a generator:",
}


def _unit(feed: Feed) -> str:
    return "samples" if feed.counts_samples else "batches"


def _length(feed: Feed) -> int | None:
    base: Any = feed.base
    dataset = base.dataset.dataset if isinstance(base.dataset, StreamShare) else base.dataset
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


def _describe_streams(run: Run, workers: int) -> dict[str, Any] | None:
    """Places of all workers' streams, and whose turn is next; None where there are no streams, or they have not begun."""
    start = run.origin.start
    if not run.marks:
        return None if start is None else _plain(start)
    places = [run.marks[index].place if index in run.marks else Place() for index in range(max(workers, 1))]
    rotation = 0 if start is None else start.rotation
    if run.last_worker is not None:
        rotation = (run.last_worker + 1) % max(workers, 1)
    return _plain(Start(places, rotation))


def _plain(start: Start) -> dict[str, Any]:
    return {
        "read": [place.read for place in start.places],
        "states": [place.state for place in start.places],
        "next": start.rotation,
    }


def _restore_streams(state: Mapping[str, Any] | None, workers: int) -> Start | None:
    if state is None:
        return None
    if len(state["read"]) != max(workers, 1):
        raise SettingError(
            f"the state holds the places of {len(state['read'])} workers' streams, and this loader has num_workers={workers}",
            hint=f"give the DataLoader num_workers={len(state['read'])} until the epoch has ended",
        )
    places = [Place(read, saved) for read, saved in zip(state["read"], state["states"], strict=True)]
    return Start(places, state["next"])
