"""Loaders, samplers and data sets of unusual making, on every rank of a world played in one process."""

import itertools
import random
import sys
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler, get_worker_info

from accelkit import prepare_data_loader
from accelkit.runtime.data import cut
from accelkit.runtime.data.loader import skip_first_batches
from accelkit.runtime.errors import MissingPackageError, SettingError, UnsupportedError
from accelkit.runtime.gradients import GradientState
from tests.support.loaders import Numbers, Stream, World, epoch


class Bare:
    """A batch sampler that has nothing but `__iter__`, and arguments of its own."""

    def __init__(self, *batches: list[int]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)


class Longest(BatchSampler):
    """A subclass whose constructor takes other arguments than torch's."""

    def __init__(self, lengths: list[int]) -> None:
        super().__init__(SequentialSampler(lengths), 2, False)
        self.lengths = lengths

    def __iter__(self) -> Iterator[list[int]]:
        order = sorted(range(len(self.lengths)), key=lambda index: -self.lengths[index])
        random.shuffle(order)
        return iter([order[start : start + 2] for start in range(0, len(order), 2)])


@pytest.mark.parametrize("size", [1, 2, 3])
def test_anything_that_yields_lists_is_a_batch_sampler(state: GradientState, size: int) -> None:
    """A bare iterable, a list of lists, a subclass with other arguments: wrapped, shared out, whole."""
    batches = [[0, 1], [2, 3], [4, 5], [6]]
    for made in (lambda: Bare(*batches), lambda: batches, lambda: Longest([1] * 7)):
        loaders = World(size, state).prepare(lambda _, made=made: DataLoader(Numbers(7), batch_sampler=made()))
        assert sorted(epoch(loaders)) == list(range(7))
        random.seed(size)
        assert sorted(epoch(loaders)) == list(range(7))
    assert type(loaders[0].batch_sampler) is Longest


def test_samplers_leave_all_global_generators_alone(state: GradientState) -> None:
    """Python's generator is where it was after an epoch whose sampler draws from it."""
    loader = World(1, state).prepare(lambda _: DataLoader(Numbers(7), batch_sampler=Longest([1] * 7)))[0]
    random.seed(3)
    wanted = random.Random(3).random()
    first, second = torch.cat(list(loader)).tolist(), torch.cat(list(loader)).tolist()

    assert random.random() == wanted
    assert first != second


class Other:
    """A loader of ready batches that is none of torch's."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes, self.epochs = sizes, []

    def __iter__(self) -> Iterator[torch.Tensor]:
        at = 0
        for size in self.sizes:
            yield torch.arange(at, at + size)
            at += size

    def __len__(self) -> int:
        return len(self.sizes)

    def set_epoch(self, epoch: int) -> None:
        """Remember what was told."""
        self.epochs.append(epoch)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("sizes", [[], [2], [2, 2, 2], [3, 1, 4, 2, 5]])
def test_loaders_of_other_making_are_shared_out_by_the_batch(state: GradientState, size: int, sizes: list[int]) -> None:
    """Each batch goes to one rank; lengths, attributes and epochs hold, and a place in it can be resumed."""
    loaders = World(size, state).prepare(lambda _: Other(sizes))
    assert {len(loader) for loader in loaders} == {-(-len(sizes) // size)}
    assert epoch(loaders) == list(range(sum(sizes)))
    assert loaders[0].sizes == sizes
    epoch(loaders)
    assert loaders[0].dataset.loader.epochs == [0, 1]
    if len(sizes) > 2 * size:
        again = World(size, state).prepare(lambda _: Other(sizes))
        next(iter(again[0]))
        resumed = World(size, state).prepare(lambda _: Other(sizes))
        for loader in resumed:
            loader.load_state_dict(again[0].state_dict())
        assert epoch(resumed) == list(range(sum(sizes[:size]), sum(sizes)))


class Split(IterableDataset[int]):
    """A stream that worker_init_fn divides, as torch's documentation shows it."""

    def __init__(self, length: int) -> None:
        self.begin, self.end = 0, length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.begin, self.end))


def divide(worker: int) -> None:
    """Give each worker a part of the range."""
    info = get_worker_info()
    assert info is not None
    assert info.id == worker
    data: Any = info.dataset
    part = -(-data.end // info.num_workers)
    data.begin, data.end = worker * part, min((worker + 1) * part, data.end)


@pytest.mark.parametrize("size", [1, 2])
def test_a_worker_sees_the_scripts_own_data_set(state: GradientState, size: int) -> None:
    """worker_init_fn may divide `get_worker_info().dataset`; all ranks together see everything."""
    loaders = World(size, state).prepare(lambda _: DataLoader(Split(11), 2, num_workers=2, worker_init_fn=divide))
    assert sorted(epoch(loaders)) == list(range(11))


@pytest.mark.slow
@pytest.mark.parametrize("dataset", [Numbers, Stream])
def test_workers_may_be_spawned(state: GradientState, dataset: type) -> None:
    """Worker processes that are started anew, not forked, read the same."""
    loader = World(1, state).prepare(
        lambda _: DataLoader(dataset(5), 2, num_workers=1, multiprocessing_context="spawn")
    )[0]
    assert torch.cat(list(loader)).tolist() == list(range(5))


def test_batches_come_in_order_on_several_ranks(state: GradientState) -> None:
    """in_order=False is overruled where ranks must fit together, and that is said."""
    with pytest.warns(UserWarning, match="in_order=False"):
        loaders = World(2, state).prepare(lambda _: DataLoader(Numbers(7), 2, num_workers=1, in_order=False))
    assert epoch(loaders) == list(range(7))


def test_a_stateful_loader_needs_torchdata(state: GradientState, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the package is not installed the message says so, and what to type."""
    monkeypatch.setitem(sys.modules, "torchdata.stateful_dataloader", None)
    with pytest.raises(MissingPackageError, match="pip install torchdata"):
        World(1, state, use_stateful_dataloader=True).prepare(lambda _: DataLoader(Numbers(4)))


def test_ready_batches_are_cut_evenly() -> None:
    """For all small lengths and rank counts, parts are of one length, and what is kept of them is the batch, in order."""
    for length, size in product(range(1, 14), (1, 2, 3, 4)):
        batch = {
            "x": torch.arange(length),
            "ids": list(range(length)),
            "task": "t",
            "matrix": torch.ones(20, 2),
            "n": 3,
        }
        parts, tail = cut.slices(batch, size)
        seen: list[int] = []
        for rank, part in enumerate(parts):
            assert part["x"].tolist() == part["ids"]
            assert len(part["ids"]) == -(-length // size)
            assert part["matrix"].shape == (20, 2)
            assert (part["task"], part["n"]) == ("t", 3)
            seen += part["ids"][: tail.keep[rank] if tail else None]
        assert seen == list(range(length))


def test_iterating_again_while_iterating_is_two_loops(state: GradientState) -> None:
    """Two loops over one loader at once each see an epoch of their own."""
    loader = World(1, state).prepare(lambda _: DataLoader(Numbers(4), 2))[0]
    pairs = [(a.tolist(), b.tolist()) for a, b in zip(loader, loader, strict=True)]
    assert pairs == [([0, 1], [0, 1]), ([2, 3], [2, 3])]


@pytest.mark.parametrize("length", [0, 1, 7, 12])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_shares_of_ranks_that_are_named(size: int, length: int) -> None:
    """The function that prepares without an Accelerator gives each rank its batches, for every rank that it is asked for."""
    loader = DataLoader(list(range(length)), batch_size=2)
    shares = [
        prepare_data_loader(loader, num_processes=size, process_index=rank, even_batches=False) for rank in range(size)
    ]
    assert [batch.tolist() for batch in interleaved(shares)] == [batch.tolist() for batch in loader]
    alone = prepare_data_loader(loader, put_on_device=True, rng_types=["torch", "generator"])
    assert [batch.tolist() for batch in alone] == [batch.tolist() for batch in loader]
    with pytest.raises(UnsupportedError, match="slice_fn_for_dispatch"):
        prepare_data_loader(loader, slice_fn_for_dispatch=slice)


def interleaved(shares: list[Any]) -> list[Any]:
    """The first batch of each rank, the second of each, and so on."""
    rounds = itertools.zip_longest(*shares)
    return [batch for batches in rounds for batch in batches if batch is not None]


class Twice(DataLoader[Any]):
    """A loader that gives every batch twice."""

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            yield batch
            yield batch.clone()


class Without(DataLoader[Any]):
    """A loader that leaves out the batch with sample 2."""

    def __iter__(self) -> Any:
        return (batch for batch in super().__iter__() if 2 not in batch.tolist())


class Endless(DataLoader[Any]):
    """A loader whose workers, were there any, never end: one iterator, over batches that begin again and again."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        object.__setattr__(self, "batch_sampler", Again(self.batch_sampler))
        self.running = super().__iter__()

    def __len__(self) -> int:
        return len(self.batch_sampler.once)  # type: ignore[union-attr]

    def __iter__(self) -> Any:
        return (next(self.running) for _ in range(len(self)))


class Again:
    """Batches, over and over."""

    def __init__(self, once: Any) -> None:
        self.once = once

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self.once


@pytest.mark.parametrize(
    ("kind", "steps", "size"),
    [
        (Twice, 12, 1),
        (Twice, 12, 2),
        (Twice, 12, 3),
        (Without, 5, 1),
        (Without, 5, 2),
        (Without, 5, 3),
        (Endless, 6, 1),
    ],
)
def test_a_loader_that_iterates_in_its_own_way_is_shared_out_by_the_batch(
    state: GradientState, kind: type, steps: int, size: int
) -> None:
    """What it yields is what all ranks see together, as often, in as many steps each; it shows what it was made with."""
    plain = [sample for batch in kind(Numbers(11), 2) for sample in batch.tolist()]
    loaders = World(size, state).prepare(lambda _: kind(Numbers(11), 2))
    for _ in range(2):
        assert epoch(loaders) == plain
    assert {len(list(loader)) for loader in loaders} == {-(-steps // size)}
    assert isinstance(loaders[0], kind)
    assert (loaders[0].batch_size, len(loaders[0].dataset)) == (2, 11)
    skipping = skip_first_batches(kind(Numbers(11), 2), 1)
    assert len(list(skipping)) == steps - 1


def test_a_loader_that_iterates_in_its_own_way_is_resumed(state: GradientState) -> None:
    """Shuffled, an epoch goes on with the batches that were left, by a loader of another seed."""
    made = [World(1, state).prepare(lambda _: Twice(Numbers(9), 2, shuffle=True))[0] for _ in range(2)]
    first, second = epoch([made[0]]), [batch.tolist() for batch in made[0]]
    assert sorted(first) == sorted(2 * list(range(9))) == sorted(sample for batch in second for sample in batch)
    made[0].set_epoch(1)
    for step, _ in enumerate(made[0]):
        if step == 2:
            break
    made[1].load_state_dict(made[0].state_dict())
    assert [batch.tolist() for batch in made[1]] == second[3:]


def test_ranks_do_not_each_read_what_may_be_in_another_order(state: GradientState) -> None:
    """A loader that iterates in its own way, and shuffles or may do so, is refused by name where every rank would read it."""
    for made in (Twice(Numbers(9), 2, shuffle=True), Endless(Numbers(9), 2)):
        with pytest.raises(SettingError, match=f"{type(made).__name__} iterates in a way of its own"):
            World(2, state).prepare(lambda _, made=made: made)
