"""The prepared loader, of every rank of a world that is played in one process: what each rank is given, epoch by epoch."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    WeightedRandomSampler,
)

from accelkit.runtime.data.loader import skip_first_batches
from accelkit.runtime.errors import SettingError
from accelkit.runtime.gradients import GradientState
from tests.support.loaders import Numbers, Shuffling, Stream, World, epoch


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


@pytest.mark.parametrize("size", [1, 2])
def test_shuffling_follows_a_data_set_that_changes_its_length(state: GradientState, size: int) -> None:
    """A data set that grows or shrinks between epochs is shuffled whole each time, and the length of the loader is true."""
    data = Numbers(8)
    loaders = World(size, state).prepare(lambda _: DataLoader(data, 2, shuffle=True))
    for length in (8, 16, 4):
        data.length = length
        assert {len(loader) for loader in loaders} == {length // 2 // size}
        assert sorted(epoch(loaders)) == list(range(length))


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

    assert loader.batch_sampler is made
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
