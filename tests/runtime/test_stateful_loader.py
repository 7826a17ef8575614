"""torchdata's StatefulDataLoader, prepared: what a plain DataLoader of the same arguments gives, and resumed at any step."""

import pickle
from collections.abc import Callable
from itertools import islice, product
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from accelkit.runtime.data.loader import skip_first_batches
from accelkit.runtime.gradients import GradientState
from tests.distributed.loader_data import Seekable
from tests.support.loaders import Numbers, Stream, World, epoch

stateful_dataloader = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
StatefulDataLoader: Any = stateful_dataloader.StatefulDataLoader

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 calls it at every loader

DATA: dict[str, Callable[[int], Any]] = {
    "map": Numbers,
    "stream": Stream,
    "seekable": lambda length: Seekable(list(range(length))),
}


def makers(data: str, length: int, **more: Any) -> dict[str, Callable[[int], Any]]:
    """Loaders that ought to do the same: torch's, made stateful by the setting, and torchdata's own."""
    return {
        "by the setting": lambda _: DataLoader(DATA[data](length), **more),
        "the script's": lambda _: StatefulDataLoader(DATA[data](length), **more),
    }


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("data", DATA)
def test_epochs_are_those_of_a_plain_loader(state: GradientState, size: int, data: str) -> None:
    """For all small lengths and batch sizes: the samples, their order, the length, and the class that isinstance tells."""
    for length, batch_size, drop_last in product(range(8), (1, 2, 3), (False, True)):
        plain = World(size, state).prepare(
            lambda _, n=length, b=batch_size, d=drop_last: DataLoader(DATA[data](n), b, drop_last=d)
        )
        wanted = epoch(plain)
        for way, make in makers(data, length, batch_size=batch_size, drop_last=drop_last).items():
            loaders = World(size, state, use_stateful_dataloader=way == "by the setting").prepare(make)
            assert isinstance(loaders[0], StatefulDataLoader)
            assert [epoch(loaders) for _ in range(2)] == [wanted, wanted], (length, batch_size, drop_last, way)
            if data != "seekable":
                assert {len(loader) for loader in loaders} == {len(loader) for loader in plain}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("way", ["by the setting", "the script's"])
def test_shuffled_epochs_are_resumed_at_every_step(state: GradientState, way: str, shuffle: bool, workers: int) -> None:
    """The state counts the batch in use as done, although one more is read ahead, and passes through torch.save and pickle."""

    def prepare(seed: int) -> Any:
        torch.manual_seed(seed)
        world = World(2, state, use_stateful_dataloader=way == "by the setting", data_seed=seed)
        return world.prepare(makers("map", 11, batch_size=2, shuffle=shuffle, num_workers=workers)[way])

    whole = [[batch.tolist() for batch in loader] for loader in prepare(3)]
    for stop in range(3):
        for rank, loader in enumerate(prepare(3)):
            seen = [batch.tolist() for batch in islice(loader, stop)] if stop else []
            resumed = prepare(5)[rank]
            resumed.load_state_dict(pickle.loads(pickle.dumps(loader.state_dict())))
            assert seen + [batch.tolist() for batch in resumed] == whole[rank]


@pytest.mark.parametrize("data", ["stream", "seekable"])
@pytest.mark.parametrize("workers", [0, 1])
def test_streams_are_resumed_at_every_step(state: GradientState, data: str, workers: int) -> None:
    """Whether the stream can seek or not."""
    make = makers(data, 7, batch_size=2, num_workers=workers)["the script's"]
    for stop in range(1, 4):
        loader, resumed = (World(1, state).prepare(make)[0] for _ in range(2))
        seen = torch.cat(list(islice(loader, stop))).tolist()
        resumed.load_state_dict(loader.state_dict())
        rest = [number for batch in resumed for number in batch.tolist()]
        assert seen + rest == list(range(7))


def test_a_generator_of_the_scripts_own_gives_the_order_of_torchs_loader(state: GradientState) -> None:
    """On one rank and on two, epoch by epoch, also from a state in the middle."""

    def make(_: int = 0, kind: Any = StatefulDataLoader) -> Any:
        return kind(Numbers(11), 3, shuffle=True, generator=torch.Generator().manual_seed(7))

    plain = make(kind=DataLoader)
    wanted = [torch.cat(list(plain)).tolist() for _ in range(3)]
    for size in (1, 2):
        loaders = World(size, state).prepare(make)
        assert [epoch(loaders) for _ in range(3)] == wanted
    loader, resumed = (World(1, state).prepare(make)[0] for _ in range(2))
    epoch([loader])
    list(islice(loader, 2))
    resumed.load_state_dict(loader.state_dict())
    assert torch.cat(list(resumed)).tolist() == wanted[1][6:]
    assert epoch([resumed]) == wanted[2]


def test_batch_samplers_of_torchdata_are_shared_out_as_they_are(state: GradientState) -> None:
    """Also around a sampler of the script's own, and by a plain loader."""
    batches = stateful_dataloader.sampler.BatchSampler([5, 3, 1, 2, 4], 2, False)
    for kind, size in product((DataLoader, StatefulDataLoader), (1, 2)):
        loaders = World(size, state).prepare(lambda _, kind=kind: kind(Numbers(6), batch_sampler=batches))
        assert epoch(loaders) == [5, 3, 1, 2, 4]


def test_nothing_before_a_skip_is_read(state: GradientState) -> None:
    """Its samplers are known, as torch's are."""
    data = Numbers(100)
    loader = World(1, state).prepare(lambda _: StatefulDataLoader(data, 2, shuffle=True))[0]
    assert len(next(iter(skip_first_batches(loader, 40)))) == 2
    assert len(data.read) <= 4


def test_a_loader_of_the_scripts_own_is_skipped(state: GradientState) -> None:
    """Prepared or not."""
    for loader in (
        StatefulDataLoader(Numbers(7), 2),
        World(1, state).prepare(lambda _: StatefulDataLoader(Numbers(7), 2))[0],
    ):
        view = skip_first_batches(loader, 2)
        assert [batch.tolist() for batch in view] == [[4, 5], [6]]
        assert [batch.tolist() for batch in view] == [[0, 1], [2, 3], [4, 5], [6]]


def test_attributes_are_those_that_the_loader_was_made_with(state: GradientState) -> None:
    """Making a loader stateful leaves nothing of it out."""

    def collate(rows: list[int]) -> Any:
        return torch.tensor(rows) + 1

    given: dict[str, Any] = {
        "num_workers": 1,
        "prefetch_factor": 3,
        "timeout": 20,
        "persistent_workers": True,
        "collate_fn": collate,
    }
    loader = World(1, state, use_stateful_dataloader=True).prepare(lambda _: DataLoader(Numbers(3), 2, **given))[0]

    assert {name: getattr(loader, name) for name in given} == given
    assert (loader.batch_size, loader.drop_last) == (2, False)
    assert [[batch.tolist() for batch in loader] for _ in range(2)] == [[[1, 2], [3]]] * 2


def test_shuffling_follows_a_data_set_that_grows(state: GradientState) -> None:
    """The random sampler of torchdata, too, goes by the length that the data set has when an epoch begins."""
    data = Numbers(8)
    loader = World(1, state).prepare(lambda _: StatefulDataLoader(data, 2, shuffle=True))[0]
    for length in (8, 16, 4):
        data.length = length
        assert sorted(epoch([loader])) == list(range(length))
