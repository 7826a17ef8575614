"""The prepared loader, of every rank of a world that is played in one process: what each rank is given, epoch by epoch."""

import collections
import copy
import dataclasses
import pickle
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    WeightedRandomSampler,
)

from accelkit.runtime.data.loader import PreparedLoader, skip_first_batches
from accelkit.runtime.data.prepare import prepare_data_loader
from accelkit.runtime.errors import SettingError
from accelkit.runtime.gradients import GradientState
from accelkit.runtime.settings import DataLoaderConfiguration


@pytest.fixture
def state() -> Iterator[GradientState]:
    """A loop state of this test alone."""
    GradientState._reset_state()
    yield GradientState()
    GradientState._reset_state()


class World:
    """Prepares one loader per rank; what rank 0 agrees on is what the others get."""

    def __init__(self, size: int, state: GradientState, **config: Any) -> None:
        self.size, self.state, self.config = size, state, DataLoaderConfiguration(**config)
        self._said: list[Any] = []

    def prepare(self, make: Any, shard: bool = True) -> list[PreparedLoader]:
        """The prepared loader of every rank, of what `make(rank)` gives."""
        said: list[Any] = []

        def agree(value: Any) -> Any:
            said.append(value)
            return said[0]

        return [
            prepare_data_loader(
                make(rank), rank=rank, size=self.size, device=torch.device("cpu"),
                config=self.config, agree=agree, state=self.state, shard=shard,
            )
            for rank in range(self.size)
        ]  # fmt: skip


class Numbers(torch.utils.data.Dataset[int]):
    """The numbers below `length`, and which were read."""

    def __init__(self, length: int) -> None:
        self.length, self.read = length, []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        self.read.append(index)
        return index


class Stream(IterableDataset[int]):
    """The numbers below `length`, one after the other."""

    def __init__(self, length: int) -> None:
        self.length, self.epoch = length, -1

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        yield from range(self.length)

    def set_epoch(self, epoch: int) -> None:
        """Remember what was told."""
        self.epoch = epoch


def epoch(loaders: list[PreparedLoader]) -> list[int]:
    """One epoch of all ranks in step: what is kept of each step, joined in the order of ranks."""
    seen: list[int] = []
    iterators = [iter(loader) for loader in loaders]
    while True:
        batches = [next(iterator, None) for iterator in iterators]
        batches = [batch for batch in batches if batch is not None]
        if not batches:
            return seen
        tail = loaders[0].state.iteration.tail  # type: ignore[union-attr]
        for rank, batch in enumerate(batches):
            seen += batch.tolist()[: tail.keep[rank] if tail else None]


@pytest.mark.parametrize(("size", "batch_size", "drop_last"), list(product((1, 2, 3), (1, 3, 4), (False, True))))
@pytest.mark.parametrize("dataset", [Numbers, Stream])
@pytest.mark.parametrize("shuffle", [False, True])
def test_all_ranks_together_see_the_data_set(
    state: GradientState, size: int, batch_size: int, drop_last: bool, dataset: type, shuffle: bool
) -> None:
    """Map-style or stream, shuffled or not: each sample once, no matter how lengths divide."""
    if shuffle and dataset is Stream:
        shuffle = False
    for length in range(1, 14):
        loaders = World(size, state).prepare(
            lambda _, length=length: DataLoader(dataset(length), batch_size, shuffle, drop_last=drop_last)
        )
        kept = length // (size * batch_size) * size * batch_size if drop_last else length
        lengths = {len(loader) for loader in loaders}
        seen = epoch(loaders)
        assert len(seen) == kept
        assert len(set(seen)) == kept
        assert lengths == {len(list(loaders[0]))}
        if not shuffle:
            assert seen == list(range(kept))


def test_shuffled_epochs_differ_and_can_be_chosen(state: GradientState) -> None:
    """Each epoch has another order, the same on all ranks; `set_epoch` goes back to one, and so does a fresh loader of the same seed."""
    loaders = World(2, state, data_seed=3).prepare(lambda _: DataLoader(Numbers(32), 4, shuffle=True))
    first, second = epoch(loaders), epoch(loaders)
    for loader in loaders:
        loader.set_epoch(1)
    again = epoch(loaders)
    fresh = World(2, state, data_seed=3).prepare(lambda _: DataLoader(Numbers(32), 4, shuffle=True))

    assert sorted(first) == sorted(second) == list(range(32))
    assert first != second
    assert again == second
    assert epoch(fresh) == first


def test_one_rank_and_two_see_the_same_order(state: GradientState) -> None:
    """A world of two, each with half of the batch size, has the global batches of one process."""
    torch.manual_seed(5)
    one = World(1, state).prepare(lambda _: DataLoader(Numbers(24), 8, shuffle=True))
    torch.manual_seed(5)
    two = World(2, state).prepare(lambda _: DataLoader(Numbers(24), 4, shuffle=True))

    assert epoch(one) == epoch(two)


def test_preparing_draws_as_often_in_every_world(state: GradientState) -> None:
    """What is drawn from the global generator after prepare and after an epoch does not depend on the number of ranks."""

    def drawn(size: int) -> list[float]:
        """The next number of rank 0, after prepare and after an epoch; each rank starts from the same seed, as processes do."""

        def make(rank: int) -> DataLoader[int]:
            torch.manual_seed(0)
            return DataLoader(Numbers(12), 2, shuffle=True)

        loader = World(size, state).prepare(make)[0]
        found = [torch.rand(()).item()]
        list(loader)
        return [*found, torch.rand(()).item()]

    assert drawn(1) == drawn(2) == drawn(3)


def test_a_generator_of_the_scripts_own_gives_the_plain_loaders_order(state: GradientState) -> None:
    """With a generator given, epochs have exactly the orders that the loader has unprepared, also after a skip."""

    def make(_: int = 0) -> DataLoader[int]:
        return DataLoader(Numbers(11), 3, shuffle=True, generator=torch.Generator().manual_seed(7))

    plain = make()
    wanted = [torch.cat(list(plain)).tolist() for _ in range(3)]
    one = World(1, state).prepare(make)
    two = World(2, state).prepare(make)
    skipping = skip_first_batches(World(1, state).prepare(make)[0], 2)

    assert [epoch(one) for _ in range(3)] == wanted
    assert [epoch(two) for _ in range(3)] == wanted
    assert [torch.cat(list(skipping)).tolist() for _ in range(3)] == [wanted[0][6:], *wanted[1:]]


class Shuffling(Sampler[int]):
    """A sampler of a user's own that draws from torch's global generator while it is iterated."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        for start in range(0, self.length, 4):
            yield from (start + torch.randperm(min(4, self.length - start))).tolist()


class Buckets(Sampler[list[int]]):
    """A batch sampler with arguments of its own and no batch size."""

    def __init__(self, *, boundaries: list[int]) -> None:
        self.boundaries = boundaries

    def __len__(self) -> int:
        return len(self.boundaries) - 1

    def __iter__(self) -> Iterator[list[int]]:
        starts = torch.randperm(len(self)).tolist()
        yield from (list(range(self.boundaries[i], self.boundaries[i + 1])) for i in starts)


SAMPLED = {
    "sampler": lambda: DataLoader(Numbers(13), 2, sampler=Shuffling(13)),
    "batch sampler": lambda: DataLoader(Numbers(9), batch_sampler=Buckets(boundaries=[0, 2, 4, 6, 8, 9])),
    "batch sampler as sampler": lambda: DataLoader(
        TensorNumbers(13), batch_size=None, sampler=BatchSampler(RandomSampler(range(13)), 3, False)
    ),
    "weights": lambda: DataLoader(Numbers(12), 2, sampler=WeightedRandomSampler([1.0] * 12, 12, replacement=False)),
}


class TensorNumbers(Numbers):
    """Numbers that are asked for by the list."""

    def __getitem__(self, index: Any) -> Any:
        return torch.as_tensor(index)


@pytest.mark.parametrize("name", SAMPLED)
def test_samplers_of_any_making_give_all_ranks_one_order(state: GradientState, name: str) -> None:
    """Ranks whose global generators differ still share out one order, whole, twice in a row, and the global generator is left alone."""
    loaders = World(2, state).prepare(lambda _: SAMPLED[name]())
    length = len(loaders[0].dataset)
    orders = []
    for _ in range(2):
        seen: list[int] = []
        iterators = [iter(loader) for loader in loaders]
        for step in range(len(loaders[0])):
            torch.manual_seed(100 + step)
            first = next(iterators[0])
            torch.manual_seed(200 + step)
            second = next(iterators[1])
            tail = state.iteration.tail  # type: ignore[union-attr]
            keep = [
                len(b) if not tail or k < 0 else k
                for b, k in zip((first, second), tail.keep if tail else (0, 0), strict=True)
            ]
            seen += first.tolist()[: keep[0]] + second.tolist()[: keep[1]]
        for iterator in iterators:
            assert next(iterator, None) is None
        assert sorted(seen) == list(range(length))
        orders.append(seen)
    assert orders[0] != orders[1] or name == "batch sampler"


def test_a_custom_batch_sampler_is_wrapped_and_not_rebuilt(state: GradientState) -> None:
    """The script's own batch sampler, whatever its constructor takes, is found inside."""
    made = Buckets(boundaries=[0, 2, 4])
    loader = World(1, state).prepare(lambda _: DataLoader(Numbers(4), batch_sampler=made))[0]

    assert loader.batch_sampler.inner is made
    assert loader.batch_sampler.boundaries == [0, 2, 4]
    assert len(loader) == 2


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_distributed_sampler_is_not_divided_again(state: GradientState, drop_last: bool) -> None:
    """16 samples that a DistributedSampler has dealt to two ranks are all seen; what it repeated is known."""
    for length in range(1, 17):
        loaders = World(2, state).prepare(
            lambda rank, length=length: DataLoader(
                Numbers(length),
                3,
                sampler=DistributedSampler(Numbers(length), 2, rank, shuffle=False, drop_last=drop_last),
            )
        )
        kept = length // 2 * 2 if drop_last else length
        assert sorted(epoch(loaders)) == list(range(kept))


def test_a_distributed_sampler_for_another_world_is_refused(state: GradientState) -> None:
    """Three replicas in a run of two is a mistake that is said, with both numbers."""
    with pytest.raises(SettingError, match="3 ranks, but this run has 2"):
        World(2, state).prepare(lambda rank: DataLoader(Numbers(6), sampler=DistributedSampler(Numbers(6), 3, rank)))


def test_a_loader_that_serves_one_rank_is_left_whole(state: GradientState) -> None:
    """With shard=False each rank sees all that its own loader has."""
    loaders = World(2, state).prepare(lambda rank: DataLoader(Numbers(4 + rank), 2), shard=False)

    assert [torch.cat(list(loader)).tolist() for loader in loaders] == [[0, 1, 2, 3], [0, 1, 2, 3, 4]]


def test_split_batches_divide_the_scripts_batch(state: GradientState) -> None:
    """With split_batches the batch size is the global one; one that does not divide is refused, with one that would."""
    loaders = World(2, state, split_batches=True).prepare(lambda _: DataLoader(Numbers(10), 4))

    assert [next(iter(loader)).tolist() for loader in loaders] == [[0, 1], [2, 3]]
    assert [loader.batch_size for loader in loaders] == [2, 2]
    assert [loader.total_batch_size for loader in loaders] == [4, 4]
    with pytest.raises(SettingError, match="multiple of 2, for example 4"):
        World(2, state, split_batches=True).prepare(lambda _: DataLoader(Numbers(10), 3))
    with pytest.raises(SettingError, match="needs a batch size"):
        World(2, state, split_batches=True).prepare(
            lambda _: DataLoader(Numbers(4), batch_sampler=Buckets(boundaries=[0, 2, 4]))
        )


@pytest.mark.parametrize("empty", [lambda: DataLoader([]), lambda: DataLoader(Stream(0))])
@pytest.mark.parametrize("size", [1, 2])
def test_a_loader_without_data_has_no_steps(state: GradientState, empty: Any, size: int) -> None:
    """Nothing is yielded, nothing is raised, and no loop counts as running."""
    for loader in World(size, state).prepare(lambda _: empty()):
        assert list(loader) == []
        assert not state.in_dataloader


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


def test_anything_but_a_loader_is_named(state: GradientState) -> None:
    """A loader-like object is refused with its type and what it lacks."""

    class Like:
        def __iter__(self) -> Iterator[int]:
            return iter(())

        def __len__(self) -> int:
            return 0

    with pytest.raises(TypeError, match=r"Like; it lacks dataset, batch_sampler, sampler"):
        World(1, state).prepare(lambda _: Like())
    with pytest.raises(TypeError, match="not list"):
        skip_first_batches([], 1)
