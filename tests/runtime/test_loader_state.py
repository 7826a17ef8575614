"""Saving and loading where a loader is: compared, sample by sample, with the epoch that was not interrupted."""

import io
import random
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler, WeightedRandomSampler, get_worker_info

from accelkit.runtime.data.loader import PreparedLoader, skip_first_batches
from accelkit.runtime.errors import SettingError
from accelkit.runtime.gradients import GradientState
from tests.support.loaders import Numbers, Shuffling, Stream, World, epoch


class Seekable(IterableDataset[int]):
    """Numbers, divided among workers, that can be entered anywhere; it remembers how many it has read."""

    def __init__(self, length: int) -> None:
        self.length, self.at, self.begin, self.read = length, 0, 0, 0

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        self.at, self.begin = self.begin, 0
        while self.at * (info.num_workers if info else 1) + (info.id if info else 0) < self.length:
            self.at += 1
            self.read += 1
            yield (self.at - 1) * (info.num_workers if info else 1) + (info.id if info else 0)

    def state_dict(self) -> dict[str, int]:
        """Where it is."""
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Begin there, once."""
        self.begin = state["at"]


class Divided(Seekable):
    """The same, without the methods that seek."""

    state_dict = None  # type: ignore[assignment]
    load_state_dict = None  # type: ignore[assignment]

    def __getattribute__(self, name: str) -> Any:
        if name in ("state_dict", "load_state_dict"):
            raise AttributeError(name)
        return super().__getattribute__(name)


class Pairs(Sampler[list[int]]):
    """A batch sampler without a batch size, whose order is drawn with Python's generator while it is iterated."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return (self.length + 1) // 2

    def __iter__(self) -> Iterator[list[int]]:
        starts = list(range(0, self.length, 2))
        while starts:
            start = starts.pop(random.randrange(len(starts)))
            yield list(range(start, min(start + 2, self.length)))


def seeded() -> torch.Generator:
    """A generator of the script's own."""
    return torch.Generator().manual_seed(3)


N = 21
MAKERS: dict[str, Any] = {
    "ordered": lambda: DataLoader(Numbers(N), 2),
    "dropping": lambda: DataLoader(Numbers(N), 2, drop_last=True),
    "shuffled": lambda: DataLoader(Numbers(N), 2, shuffle=True),
    "own generator": lambda: DataLoader(Numbers(N), 2, shuffle=True, generator=seeded()),
    "weights": lambda: DataLoader(Numbers(N), 2, sampler=WeightedRandomSampler([1.0] * N, N, generator=seeded())),
    "sampler": lambda: DataLoader(Numbers(N), 2, sampler=Shuffling(N)),
    "batch sampler": lambda: DataLoader(Numbers(N), batch_sampler=Pairs(N)),
    "stream": lambda: DataLoader(Stream(N), 2),
    "seekable stream": lambda: DataLoader(Seekable(N), 2),
    "ready batches": lambda: DataLoader(Seekable(N), batch_size=None, collate_fn=torch.tensor),
}


def take(iterators: list[Iterator[Any]], steps: int) -> list[list[Any]]:
    """Some steps of every rank, in step: for each step what every rank has, as lists."""
    return [[next(iterator).tolist() for iterator in iterators] for _ in range(steps)]


def rest(iterators: list[Iterator[Any]]) -> list[list[Any]]:
    """All further steps."""
    return [[batch.tolist() for batch in batches] for batches in zip(*iterators, strict=True)]


def whole(loaders: list[PreparedLoader]) -> list[list[Any]]:
    """An epoch."""
    return rest([iter(loader) for loader in loaders])


def through_file(state: dict[str, Any]) -> dict[str, Any]:
    """The state as a file gives it back that is loaded without trust."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    loaded: dict[str, Any] = torch.load(buffer, weights_only=True)
    return loaded


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("kind", MAKERS)
def test_every_step_can_be_resumed_and_resumed_again(state: GradientState, kind: str, size: int) -> None:
    """After every step, and again two steps later, new loaders of another seed go on with exactly the samples that are left."""
    world = World(size, state, data_seed=5)
    uncut = world.prepare(lambda _: MAKERS[kind]())
    wanted = [whole(uncut), whole(uncut), whole(uncut)]
    for stop in range(len(wanted[1])):
        loaders = world.prepare(lambda _: MAKERS[kind]())
        whole(loaders)
        iterators = [iter(loader) for loader in loaders]
        seen = take(iterators, stop)
        for more in (2, 1):
            states = [through_file(loader.state_dict()) for loader in loaders]
            loaders = World(size, state, data_seed=6).prepare(lambda _: MAKERS[kind]())
            for loader, saved in zip(loaders, states, strict=True):
                loader.load_state_dict(saved)
                assert loader.state_dict()["position"] == saved["position"]
            iterators = [iter(loader) for loader in loaders]
            seen += take(iterators, min(more, len(wanted[1]) - len(seen)))
        seen += rest(iterators)
        assert seen == wanted[1], f"stopped at step {stop}"
        assert whole(loaders) == wanted[2]


@pytest.mark.parametrize("kind", ["ordered", "shuffled", "sampler", "stream", "seekable stream"])
@pytest.mark.parametrize("sizes", [(1, 2), (2, 1), (2, 3), (3, 2), (4, 3)])
def test_the_number_of_ranks_may_change(state: GradientState, kind: str, sizes: tuple[int, int]) -> None:
    """What some ranks have left of an epoch, another number of ranks sees, each sample once, in the same order."""
    before, after = sizes
    world = World(before, state, data_seed=5)
    order = epoch(world.prepare(lambda _: MAKERS[kind]()))
    for stop in range(1, N // (2 * before)):
        loaders = world.prepare(lambda _: MAKERS[kind]())
        take([iter(loader) for loader in loaders], stop)
        saved = loaders[0].state_dict()
        others = World(after, state).prepare(lambda _: MAKERS[kind]())
        for loader in others:
            loader.load_state_dict(saved)
        assert epoch(others) == order[stop * before * 2 :]


@pytest.mark.slow
@pytest.mark.parametrize("dataset", [Seekable, Divided])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_streams_go_on_where_each_of_them_was(
    state: GradientState, dataset: type, workers: int, persistent: bool
) -> None:
    """With a stream in every worker, of different lengths, the order after a resume is that of the uncut epoch; so is the next epoch."""

    def make() -> list[PreparedLoader]:
        return World(1, state).prepare(
            lambda _: DataLoader(dataset(13), 2, num_workers=workers, persistent_workers=persistent)
        )

    wanted = whole(make())
    for stop in (1, 4, len(wanted) - 1):
        first, second = make(), make()
        seen = take([iter(first[0])], stop)
        second[0].load_state_dict(through_file(first[0].state_dict()))
        assert seen + whole(second) == wanted
        assert whole(second) == wanted
    other = World(1, state).prepare(lambda _: DataLoader(dataset(13), 2, num_workers=3 - workers))
    with pytest.raises(SettingError, match=f"num_workers={3 - workers}"):
        other[0].load_state_dict(first[0].state_dict())


def ragged(loaders: list[PreparedLoader]) -> list[list[Any]]:
    """What is left of an epoch, for each step what every rank has that has any."""
    steps = zip_longest(*(iter(loader) for loader in loaders))
    return [[batch.tolist() for batch in batches if batch is not None] for batches in steps]


@pytest.mark.slow
@pytest.mark.parametrize("dataset", [Seekable, Divided])
@pytest.mark.parametrize(("split", "length", "batch"), [(False, 19, 2), (True, 18, 6)])
def test_ranks_without_a_batch_have_had_their_last_one(
    state: GradientState, dataset: type, split: bool, length: int, batch: int
) -> None:
    """Streams of several workers that end in rounds not all ranks have part in: only the epoch's last round does; so after a resume."""

    def make() -> list[PreparedLoader]:
        world = World(3, state, even_batches=False, split_batches=split)
        return world.prepare(lambda _: DataLoader(dataset(length), batch, num_workers=2))

    wanted = ragged(make())
    assert [len(step) for step in wanted] == [3] * (len(wanted) - 1) + [1]
    assert sorted(sample for step in wanted for share in step for sample in share) == list(range(length))
    for stop in range(1, len(wanted)):
        first, second = make(), make()
        seen = take([iter(loader) for loader in first], stop)
        for before, after in zip(first, second, strict=True):
            after.load_state_dict(through_file(before.state_dict()))
        assert seen + ragged(second) == wanted


def test_resuming_map_style_data_reads_nothing_before(state: GradientState) -> None:
    """A loader resumed at 90 % of an epoch, also by two workers' read-ahead, reads the batches that are left only."""
    loader, resumed = (World(1, state).prepare(lambda _: DataLoader(Numbers(1000), 10, shuffle=True))[0] for _ in "ab")
    saved = loader.state_dict()
    resumed.load_state_dict({**saved, "position": 900})
    next(iter(resumed))
    assert len(resumed.dataset.read) == 20
    stream = World(1, state).prepare(lambda _: DataLoader(Seekable(1000), 10))[0]
    stream.load_state_dict(
        {**stream.state_dict(), "position": 900, "streams": {"read": [900], "states": [{"at": 900}], "next": 0}}
    )
    next(iter(stream))
    assert stream.dataset.read == 20


def test_between_epochs_the_next_one_is_saved(state: GradientState) -> None:
    """After a whole epoch the state is that of the next one's beginning; in its last step it is its end, so that nothing is left."""
    world = World(1, state, data_seed=2)
    loader, other = world.prepare(lambda _: MAKERS["shuffled"]())[0], world.prepare(lambda _: MAKERS["shuffled"]())[0]
    last = [loader.state_dict() for _ in loader][-1]
    after = loader.state_dict()
    second = whole([loader])

    other.load_state_dict(after)
    assert whole([other]) == second
    other.load_state_dict(last)
    assert whole([other]) == []
    assert whole([other]) == second


def test_a_loop_that_was_left_can_be_saved(state: GradientState) -> None:
    """After break, the state is where the loop was left; views share it with their loader."""
    world = World(1, state)
    loader, other = world.prepare(lambda _: MAKERS["shuffled"]())[0], world.prepare(lambda _: MAKERS["shuffled"]())[0]
    wanted = whole(world.prepare(lambda _: MAKERS["ordered"]()))
    loader = world.prepare(lambda _: MAKERS["ordered"]())[0]
    for step, _ in enumerate(skip_first_batches(loader, 2)):
        if step == 1:
            break
    other = world.prepare(lambda _: MAKERS["ordered"]())[0]
    other.load_state_dict(loader.state_dict())
    assert whole([other]) == wanted[4:]


def test_a_loop_that_was_left_is_over_in_another_one(state: GradientState) -> None:
    """Validation that stops early, in a training loop that is saved, begins anew after loading, as it does when training goes on."""

    def make() -> tuple[PreparedLoader, PreparedLoader]:
        world = World(1, state, data_seed=3)
        return world.prepare(lambda _: MAKERS["ordered"]())[0], world.prepare(lambda _: MAKERS["shuffled"]())[0]

    training, validation = make()
    wanted = [whole([training]), whole([validation]), whole([validation])]
    training, validation = make()
    for step, _ in enumerate(training):
        if step == 1:
            next(iter(validation))
            saved = training.state_dict(), validation.state_dict()
            assert take([iter(validation)], 2) == wanted[2][:2]
    training, validation = make()
    training.load_state_dict(saved[0])
    validation.load_state_dict(saved[1])
    assert [whole([training]), whole([validation])] == [wanted[0][2:], wanted[2]]


def test_an_explicit_skip_counts_from_the_epochs_beginning(state: GradientState) -> None:
    """A script that loads a state and skips the steps it has done as well does not skip them twice."""
    world = World(1, state, data_seed=2)
    loader, other = world.prepare(lambda _: MAKERS["shuffled"]())[0], world.prepare(lambda _: MAKERS["shuffled"]())[0]
    first, second = whole([loader]), whole([loader])
    fresh = world.prepare(lambda _: MAKERS["shuffled"]())[0]
    take([iter(fresh)], 3)
    other.load_state_dict(fresh.state_dict())
    assert whole([skip_first_batches(other, 3)]) == first[3:]
    assert whole([other]) == second
    other.load_state_dict(fresh.state_dict())
    other.set_epoch(0)
    assert whole([other]) == first[3:]
    other.load_state_dict(fresh.state_dict())
    other.set_epoch(1)
    assert whole([other]) == second


def test_resuming_draws_nothing_from_the_global_generator(state: GradientState) -> None:
    """What a script draws after a resume is what it draws without one: the epoch's beginning has drawn its part already."""
    world = World(1, state)

    def draw(resume: bool) -> list[float]:
        loader = world.prepare(lambda _: MAKERS["ordered"]())[0]
        torch.manual_seed(1)
        iterator = iter(loader)
        drawn = []
        for step in range(8):
            if resume and step == 3:
                saved, generators = loader.state_dict(), torch.get_rng_state()
                loader = world.prepare(lambda _: MAKERS["ordered"]())[0]
                loader.load_state_dict(saved)
                torch.set_rng_state(generators)
                iterator = iter(loader)
            next(iterator)
            drawn.append(torch.rand(()).item())
        return drawn

    assert draw(resume=True) == draw(resume=False)


def test_the_state_of_another_loader_is_refused(state: GradientState) -> None:
    """Another length, no shuffling, batches of another kind, or something else altogether: said, with both values."""
    world = World(1, state)

    def load(maker: Any, saved: Any) -> None:
        world.prepare(lambda _: maker())[0].load_state_dict(saved)

    loader = world.prepare(lambda _: MAKERS["shuffled"]())[0]
    next(iter(loader))
    saved = loader.state_dict()
    with pytest.raises(SettingError, match="length of 21 and not 5"):
        load(lambda: DataLoader(Numbers(5), 2, shuffle=True), saved)
    with pytest.raises(SettingError, match="seed: True and not False"):
        load(MAKERS["ordered"], saved)
    with pytest.raises(SettingError, match="counts 'samples' and not 'batches'"):
        load(MAKERS["batch sampler"], saved)
    with pytest.raises(SettingError, match="not the state of a prepared loader"):
        load(MAKERS["ordered"], {"epoch": 1})
