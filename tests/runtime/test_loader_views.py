"""Views, ends, structures and workers of the prepared loader, on every rank of a world played in one process."""

import collections
import copy
import dataclasses
import pickle
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import (
    DataLoader,
)

from accelkit.runtime.data.loader import skip_first_batches
from accelkit.runtime.errors import SettingError
from accelkit.runtime.gradients import GradientState
from tests.support.loaders import Numbers, Shuffling, Stream, World, epoch


@pytest.mark.parametrize("skip", range(7))
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("kind", ["ordered", "shuffled", "sampler", "stream"])
def test_a_view_skips_once(state: GradientState, kind: str, size: int, skip: int) -> None:
    """The first epoch of the view lacks its first steps and nothing else, also in its tail; the second is whole, and differs as ever."""
    makers = {
        "ordered": lambda: DataLoader(Numbers(21), 2),
        "shuffled": lambda: DataLoader(Numbers(21), 2, shuffle=True),
        "sampler": lambda: DataLoader(Numbers(21), 2, sampler=Shuffling(21)),
        "stream": lambda: DataLoader(Stream(21), 2),
    }
    world = World(size, state, data_seed=1)
    plain = world.prepare(lambda _: makers[kind]())
    views = [skip_first_batches(loader, skip) for loader in world.prepare(lambda _: makers[kind]())]
    whole = [[batch.tolist() for batch in loader] for loader in plain]
    second = epoch(plain)

    assert [len(view) for view in views] == [max(0, len(rank) - skip) for rank in whole]
    if skip < len(whole[0]):
        seen = epoch(views)
        assert len(seen) == 21 - 2 * size * skip
        for rank, view in enumerate(views):
            view.set_epoch(0)
            again = skip_first_batches(view, skip)
            assert [batch.tolist() for batch in again] == whole[rank][skip:]
            view.set_epoch(1)
        assert epoch(views) == second


def test_skips_add_up(state: GradientState) -> None:
    """A view of a view leaves out the steps of both."""
    loader = World(1, state).prepare(lambda _: DataLoader(Numbers(20), 2))[0]
    view = skip_first_batches(skip_first_batches(loader, 3), 2)

    assert len(view) == 5
    assert torch.cat(list(view)).tolist() == list(range(10, 20))


def test_skipping_reads_and_draws_nothing(state: GradientState) -> None:
    """After a skip of 90 % no skipped sample is read, ordered or shuffled, and a plain loader keeps its order."""
    for shuffle in (False, True):
        plain = DataLoader(Numbers(1000), 10, shuffle)
        data = plain.dataset
        view = skip_first_batches(World(1, state).prepare(lambda _, plain=plain: plain)[0], 90)
        next(iter(view))
        assert len(data.read) == 20, "the batch, and the one ahead"
    torch.manual_seed(0)
    wanted = torch.cat(list(DataLoader(Numbers(20), 2, shuffle=True))).tolist()
    torch.manual_seed(0)
    assert torch.cat(list(skip_first_batches(DataLoader(Numbers(20), 2, shuffle=True), 4))).tolist() == wanted[8:]


class Moving(Stream):
    """A stream whose position lives on the data set: iterating goes on from there."""

    at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < self.length:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        """Where it is."""
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go there."""
        self.at = state["at"]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_skipping_loses_nothing_of_a_stream_that_goes_on(state: GradientState, size: int) -> None:
    """Looking at the epoch's first samples, which fill its last round, moves no position on the data set."""
    loaders = World(size, state).prepare(lambda _: DataLoader(Moving(41), 4))
    for skip in (0, 1, 3):
        views = [skip_first_batches(loader, skip) for loader in loaders]
        assert epoch(views) == list(range(skip * size * 4, 41))


def test_a_view_shares_epochs_with_its_loader(state: GradientState) -> None:
    """The epoch after a resumed one is the next one, whether the view or the loader is iterated."""
    loader, reference = (
        World(1, state, data_seed=1).prepare(lambda _: DataLoader(Numbers(16), 2, shuffle=True))[0] for _ in range(2)
    )
    list(reference)
    second = torch.cat(list(reference)).tolist()
    list(skip_first_batches(loader, 3))

    assert torch.cat(list(loader)).tolist() == second


def test_the_end_is_known_while_the_last_batch_is_used(state: GradientState) -> None:
    """`end_of_dataloader` is true in the last step only, and false outside loops."""
    loader = World(1, state).prepare(lambda _: DataLoader(Numbers(5), 2))[0]

    assert [state.end_of_dataloader for _ in loader] == [False, False, True]
    assert not state.end_of_dataloader
    assert state.remainder == -1


def test_leaving_an_inner_loop_puts_the_outer_one_in_charge(state: GradientState) -> None:
    """Nested loops, ended or left by break or by an error: the loop whose step it is counts."""
    world = World(1, state)
    outer = world.prepare(lambda _: DataLoader(Numbers(3), 1))[0]
    inner = world.prepare(lambda _: DataLoader(Numbers(6), 1))[0]
    held = []
    for step, _ in enumerate(outer):
        assert state.active_dataloader is outer
        iterator = iter(inner)
        if step == 1:
            held.append(iterator)  # kept alive: not even the collector ends it
        for number in iterator:
            assert state.active_dataloader is inner
            if number == 2:
                break
        del iterator
        with pytest.raises(ZeroDivisionError):
            [1 // number.item() for number in inner]
    assert state.active_dataloader in (None, inner)
    held.clear()
    assert not state.in_dataloader


class Pair(NamedTuple):
    """A named tuple."""

    x: Any
    y: Any


@dataclasses.dataclass(frozen=True)
class Record:
    """A frozen dataclass."""

    x: Any
    name: str


class Attributes(collections.UserDict[str, Any]):
    """A mapping with an attribute beside its items."""


def collated(kind: str, rows: list[int]) -> Any:
    """A batch of the structure named."""
    x = torch.tensor(rows)
    made: dict[str, Any] = {
        "dict": {"x": x, "names": ["a"] * len(rows), "none": None},
        "named tuple": Pair(x, "task"),
        "dataclass": Record(x, "n"),
        "defaultdict": collections.defaultdict(list, x=x),
        "deque": collections.deque([x], maxlen=3),
        "user dict": Attributes(x=x),
        "nested": [{"a": (x, [x, None])}, "s"],
    }
    return made[kind]


@pytest.mark.parametrize("kind", ["dict", "named tuple", "dataclass", "defaultdict", "deque", "user dict", "nested"])
def test_batches_of_any_structure_come_back_as_themselves(state: GradientState, kind: str) -> None:
    """The batch has the type that the collate function made, with all that is beside the tensors."""
    loader = World(1, state).prepare(lambda _: DataLoader(Numbers(2), 2, collate_fn=lambda rows: collated(kind, rows)))[
        0
    ]
    batch = next(iter(loader))

    assert type(batch) is type(collated(kind, [0, 1]))
    assert str(batch) == str(collated(kind, [0, 1]))


class OwnLoader(DataLoader[Any]):
    """A loader class of a user's own."""

    def __init__(self, dataset: Any, colour: str) -> None:
        super().__init__(dataset, batch_size=2)
        self.colour = colour

    def describe(self) -> str:
        """Colour and length."""
        return f"{self.colour} {len(self.dataset)}"


def test_a_prepared_loader_is_what_it_was(state: GradientState) -> None:
    """isinstance, attributes, methods, copies and pickles hold for the script's own class of loader."""
    loader = World(1, state).prepare(lambda _: OwnLoader(Numbers(4), "red"))[0]

    assert isinstance(loader, DataLoader)
    assert isinstance(loader, OwnLoader)
    assert loader.describe() == "red 4"
    assert loader.num_workers == 0
    for other in (pickle.loads(pickle.dumps(loader)), copy.copy(loader), copy.deepcopy(loader)):
        assert torch.cat(list(other)).tolist() == [0, 1, 2, 3]
    with pytest.raises(AttributeError):
        _ = loader.no_such_thing


@pytest.mark.parametrize("dataset", [Numbers, Stream])
def test_workers_change_nothing(state: GradientState, dataset: type) -> None:
    """With worker processes, persistent ones too, ranks see what they see without, and tails are known."""
    loaders = World(2, state).prepare(lambda _: DataLoader(dataset(7), 2, num_workers=1, persistent_workers=True))
    assert epoch(loaders) == list(range(7))
    assert epoch(loaders) == list(range(7))


def test_a_stream_is_told_its_epoch(state: GradientState) -> None:
    """set_epoch of a data set is called with 0, 1, ...; a script that sets it itself is left alone."""
    stream = Stream(2)
    loader = World(1, state).prepare(lambda _: DataLoader(stream))[0]
    told = []
    for _ in range(2):
        list(loader)
        told.append(stream.epoch)
    stream.set_epoch(9)
    list(loader)
    told.append(stream.epoch)
    loader.set_epoch(4)
    list(loader)
    told.append(stream.epoch)

    assert told == [0, 1, 9, 4]


def test_a_negative_skip_is_refused(state: GradientState) -> None:
    """Of a prepared loader and of a plain one: there is nothing before the first batch."""
    for loader in (DataLoader(Numbers(4), 1), World(1, state).prepare(lambda _: DataLoader(Numbers(4), 1))[0]):
        with pytest.raises(SettingError, match="num_batches=-1"):
            skip_first_batches(loader, -1)


def test_anything_but_a_loader_is_named(state: GradientState) -> None:
    """What cannot be iterated again and again is refused with its type."""
    with pytest.raises(TypeError, match=r"__iter__ starts an epoch of batches, not builtins\.generator"):
        World(1, state).prepare(lambda _: (number for number in range(3)))
    with pytest.raises(TypeError, match=r"not builtins\.int"):
        World(1, state).prepare(lambda _: 3)
    with pytest.raises(TypeError, match="not list"):
        skip_first_batches([], 1)
