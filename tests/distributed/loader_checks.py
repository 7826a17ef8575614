"""What must hold of loaders in a world of several ranks. Run once per rank.

python -m tests.distributed.loader_checks FOLDER
"""

import itertools
import random
import sys
import time
from collections import UserDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Sampler

from accelkit import Accelerator, DataLoaderConfiguration
from accelkit.runtime.errors import BatchSourceError, DistributedOperationException
from tests.distributed.loader_data import Numbers, Seekable, Stream, lists, prepare, refused
from tests.support.checks import run_checks


def check_handing_out_is_reading_oneself(acc: Accelerator) -> None:
    """Dispatched, each rank has the very batches that it would have read itself, for every way of dividing, the metrics being the data."""
    ways = itertools.product(
        (0, 1, 4, 7, 11, 17), (1, 3, 4), (False, True), (False, True), (False, True), ("map", "stream")
    )
    for length, batch, drop, even, split, kind in ways:
        if split and batch % acc.num_processes:
            continue
        data: Any = Numbers(length) if kind == "map" else Stream(list(range(length)))
        config = {"even_batches": even, "split_batches": split}
        mine, handed = (
            prepare(acc, DataLoader(data, batch, drop_last=drop), dispatch_batches=way, **config)
            for way in (False, True)
        )
        read = lists(mine)
        data.read = [] if kind == "map" else 0
        if even:
            seen, got = [], []
            for x in handed:
                got.append(x.tolist())
                seen += acc.gather_for_metrics(x).tolist()
            per_round = batch if split else batch * acc.num_processes
            assert seen == list(range(length // per_round * per_round if drop else length)), (
                length,
                batch,
                drop,
                split,
            )
        else:
            got = lists(handed)
        assert got == read, (length, batch, drop, even, split, kind)
        assert acc.is_main_process or not data.read, "only rank 0 reads"


def check_shuffling_when_handed_out(acc: Accelerator) -> None:
    """Shuffled epochs of rank 0 reach all ranks whole, and differ; rank 0's worker processes read them, too."""
    torch.manual_seed(acc.process_index)
    for workers in (0, 2):
        loader = prepare(acc, DataLoader(Numbers(13), 2, shuffle=True, num_workers=workers), dispatch_batches=True)
        epochs = [[n for x in loader for n in acc.gather_for_metrics(x).tolist()] for _ in range(2)]
        assert [sorted(epoch) for epoch in epochs] == [list(range(13))] * 2
        assert epochs[0] != epochs[1]


class Pair(NamedTuple):
    """A named tuple."""

    x: Any
    note: Any


@dataclass
class Record:
    """A dataclass."""

    x: Any
    ids: list[str]


class Attributes(UserDict[str, Any]):
    """A mapping with an attribute beside its items."""

    colour = "none"


def collate(rows: list[int]) -> dict[str, Any]:
    """A batch with everything in it, of a width of its own."""
    wide = torch.tensor(rows).unsqueeze(1).expand(len(rows), rows[0] + 1)
    beside = Attributes(x=wide.double())
    beside.colour = f"colour {rows[0]}"
    return {
        "wide": wide,
        "flags": torch.tensor([row % 2 == 0 for row in rows]),
        "half": wide.to(torch.bfloat16),
        "complex": torch.complex(wide.double(), wide.double()),
        "none": None,
        "task": "sum",
        "names": [f"n{row}" for row in rows],
        "truth": True,
        "loss": torch.tensor(1.5),
        "empty": torch.empty(0, 3),
        "pair": Pair((wide, [1, "a"]), {"deep": wide}),
        "record": Record(wide, ["r"] * len(rows)),
        "beside": beside,
        "sparse": wide.float().to_sparse(),
    }


def check_batches_of_any_structure_are_handed_out(acc: Accelerator) -> None:
    """Tensors of every type, texts, truth values, None, lists and containers of the script's own arrive as they were read."""
    loader = prepare(acc, DataLoader(Numbers(16), 2, collate_fn=collate), dispatch_batches=True)
    for step, batch in enumerate(loader):
        first = 2 * (step * acc.num_processes + acc.process_index)
        wanted = collate([first, first + 1])
        assert str(batch) == str(wanted)
        assert [type(value) for value in batch.values()] == [type(value) for value in wanted.values()]
        assert batch["half"].dtype == torch.bfloat16
        assert batch["beside"].colour == wanted["beside"].colour
        batch["wide"] = batch["wide"] + 1  # a batch of one's own
    assert step == 16 // 2 // acc.num_processes - 1


def ready(sizes: list[int]) -> list[Any]:
    """Batches that a data set makes: of several lengths, with a list per sample, a text and a number."""
    starts = itertools.accumulate(sizes, initial=0)
    return [
        {
            "x": torch.arange(start, start + size),
            "ids": [str(n) for n in range(start, start + size)],
            "task": "t",
            "n": 3,
        }
        for start, size in zip(starts, sizes, strict=False)
    ]


def check_ready_batches(acc: Accelerator) -> None:
    """Batches that the data set makes go out one per rank, or cut, lists like tensors: no sample is lost or repeated."""
    for sizes, split, dispatch in itertools.product(
        ([2, 2, 2], [3, 5, 1, 4], [1], [4, 3], []), (False, True), (False, True)
    ):
        loader = prepare(
            acc, DataLoader(Stream(ready(sizes)), batch_size=None), split_batches=split, dispatch_batches=dispatch
        )
        seen, names = [], []
        for batch in loader:
            assert len(batch["ids"]) == len(batch["x"])
            assert (batch["task"], batch["n"]) == ("t", 3)
            gathered = acc.gather_for_metrics({"x": batch["x"], "ids": batch["ids"]})
            seen += gathered["x"].tolist()
            names += gathered["ids"]
        assert seen == list(range(sum(sizes))), (sizes, split, dispatch)
        assert names == [str(number) for number in seen]


class OtherLoader:
    """A loader that is none of torch's."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches, self.colour = batches, "red"

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def check_loaders_that_are_not_torchs(acc: Accelerator) -> None:
    """Anything that yields batches is shared out batch by batch; its attributes show."""
    for dispatch in (False, True):
        loader = prepare(acc, OtherLoader(ready([2] * 5)), dispatch_batches=dispatch)
        seen = [number for batch in loader for number in acc.gather_for_metrics(batch["x"]).tolist()]
        assert seen == list(range(10))
        assert loader.colour == "red"
        assert len(loader) == -(-5 // acc.num_processes)


class Twice(DataLoader[Any]):
    """A loader that gives every batch twice."""

    def __iter__(self) -> Any:
        return (batch.clone() for batch in super().__iter__() for _ in range(2))


def check_loaders_that_iterate_in_their_own_way(acc: Accelerator) -> None:
    """A shuffled loader with an `__iter__` of its own is read by rank 0: what it yields reaches the ranks once, in as many steps each."""
    loader = prepare(acc, Twice(Numbers(9), 2, shuffle=True))
    seen = [number for batch in loader for number in acc.gather_for_metrics(batch).tolist()]
    assert sorted(seen) == sorted(2 * list(range(9)))


def check_one_broadcast_a_step(acc: Accelerator) -> None:
    """Handing out an epoch of n steps takes n + 1 broadcasts and no other collective, texts and last step included."""
    calls: list[str] = []
    names = [
        name
        for name in ("broadcast", "all_gather", "all_gather_into_tensor", "all_reduce", "scatter")
        if hasattr(dist, name)
    ]
    originals = {name: getattr(dist, name) for name in [*names, "all_gather_object", "broadcast_object_list"]}

    def counted(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return originals[name](*args, **kwargs)

        return call

    loader = prepare(acc, DataLoader(Numbers(29), 2, collate_fn=collate), dispatch_batches=True)
    try:
        for name in originals:
            setattr(dist, name, counted(name))
        steps = len(list(loader))
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)
    assert calls == ["broadcast"] * (steps + 1)


def check_failures_reach_every_rank(acc: Accelerator) -> None:
    """An error of rank 0's data set, collate function or pickling is raised on all ranks at once, and they can go on together."""

    def fail() -> Any:
        raise KeyError("the third record is broken")

    makers: list[Any] = [
        lambda: DataLoader(Stream([0] * 5 * acc.num_processes + [fail]), 1),
        lambda: DataLoader(Stream([fail]), 1),
        lambda: DataLoader(Numbers(4), 1, collate_fn=lambda rows: rows and fail()),
        lambda: DataLoader(Stream([0, fail]), 1, num_workers=1),
    ]
    for maker in makers:
        loader, start = prepare(acc, maker(), dispatch_batches=True), time.monotonic()
        kind = KeyError if acc.is_main_process else BatchSourceError
        message = refused(kind, lambda loader=loader: list(loader))
        assert "the third record is broken" in message
        assert acc.is_main_process or "in fail" in message, "rank 0's traceback"
        assert time.monotonic() - start < 20
        acc.wait_for_everyone()
    odd = prepare(acc, DataLoader(Numbers(4), 1, collate_fn=lambda rows: lambda: rows), dispatch_batches=True)
    refused(Exception, lambda: list(odd))
    acc.wait_for_everyone()


def check_skipping_what_is_handed_out(acc: Accelerator) -> None:
    """After a skip the right steps come, and rank 0 has read of a map-style set no more than these and one step ahead."""
    size = acc.num_processes
    for kind in ("map", "stream"):
        data: Any = Numbers(100) if kind == "map" else Stream(list(range(100)))
        loader = prepare(acc, DataLoader(data, 2), dispatch_batches=True)
        whole = lists(loader)
        view = acc.skip_first_batches(loader, 9)
        data.read = [] if kind == "map" else 0
        first = next(iter(view)).tolist()
        assert first == whole[9]
        if kind == "map":
            assert sorted(set(data.read)) == (list(range(18 * size, 22 * size)) if acc.is_main_process else [])
        view = acc.skip_first_batches(loader, 9)
        assert len(view) == len(whole) - 9 if kind == "map" else True
        assert lists(view) == whole[9:]
        assert lists(view) == whole


def check_resuming_what_is_handed_out(acc: Accelerator) -> None:
    """A dispatched epoch is resumed at every step, twice, by states that every rank has saved for itself, or rank 0 for all."""
    makers: list[Any] = [
        lambda: DataLoader(Numbers(23), 2, shuffle=True),
        lambda: DataLoader(Seekable(list(range(23))), 2),
        lambda: DataLoader(Stream(list(range(23))), 2),
    ]
    for maker, by_rank_0 in itertools.product(makers, (False, True)):
        whole = lists(prepare(acc, maker(), dispatch_batches=True, data_seed=4))
        for stop in range(len(whole) - 1):
            loader = prepare(acc, maker(), dispatch_batches=True, data_seed=4)
            seen = lists(itertools.islice(loader, stop + 1))
            for _ in range(2):
                state = loader.state_dict()
                state = acc.broadcast_object_list([state])[0] if by_rank_0 else state
                loader = prepare(acc, maker(), dispatch_batches=True, data_seed=5)
                loader.load_state_dict(state)
                seen += lists(itertools.islice(loader, 1))
            seen += lists_after(prepare(acc, maker(), dispatch_batches=True), loader.state_dict())
            assert seen == whole or stop + 3 > len(whole), (stop, seen, whole)


def lists_after(loader: Any, state: Any) -> list[Any]:
    """The steps that are left."""
    loader.load_state_dict(state)
    return lists(loader)


def check_loops_in_each_other(acc: Accelerator) -> None:
    """Handed-out loops within and after each other, left by break, do not disturb each other, and the outer one comes back in charge."""
    outer = prepare(acc, DataLoader(Numbers(4 * acc.num_processes), 1), dispatch_batches=True)
    inner = prepare(acc, DataLoader(Stream(list(range(6 * acc.num_processes))), 1))
    seen = []
    for x in outer:
        for step, y in enumerate(inner):
            if step == 2:
                break
            seen.append(acc.gather_for_metrics(y).tolist())
        assert acc.gradient_state.active_dataloader is outer
        seen.append(acc.gather_for_metrics(x).tolist())
    size = acc.num_processes
    ranges = [list(range(step * size, (step + 1) * size)) for step in range(4)]
    assert seen == [part for step in range(4) for part in (ranges[0], ranges[1], ranges[step])]


class Drawn(Sampler[int]):
    """A sampler that draws with Python's generator while it is iterated."""

    def __len__(self) -> int:
        return 14

    def __iter__(self) -> Iterator[int]:
        left = list(range(14))
        while left:
            yield left.pop(random.randrange(len(left)))


def check_samplers_that_draw_elsewhere(acc: Accelerator) -> None:
    """A sampler that draws from Python's generator gives one order to all ranks, though they draw differently besides."""
    random.seed(acc.process_index)
    loader = prepare(acc, DataLoader(Numbers(14), 2, sampler=Drawn()))
    seen = []
    for x in loader:
        random.random()
        seen += acc.gather_for_metrics(x).tolist()
    assert sorted(seen) == list(range(14))


def check_gathering_without_all_ranks_is_refused(acc: Accelerator) -> None:
    """In a step that some ranks do not have, gathering for metrics raises at once and names them; afterwards all go on."""
    for dispatch, kind in itertools.product((False, True), ("map", "stream")):
        data: Any = Numbers(acc.num_processes + 1) if kind == "map" else Stream(list(range(acc.num_processes + 1)))
        loader = prepare(acc, DataLoader(data, 1), even_batches=False, dispatch_batches=dispatch)
        steps = 0
        for x in loader:
            steps += 1
            if steps == 1:
                assert acc.gather_for_metrics(x).tolist() == list(range(acc.num_processes))
                continue
            message = refused(DistributedOperationException, lambda x=x: acc.gather_for_metrics(x))
            assert "rank 1" in message
        assert steps == (2 if acc.is_main_process else 1)
        acc.wait_for_everyone()


def check_loaders_that_serve_one_rank_are_gathered_whole(acc: Accelerator) -> None:
    """Where each rank reads data of its own, whose batches differ in length, every sample is in the metrics once, texts too."""
    size, me = acc.num_processes, acc.process_index
    for batch, steps in itertools.product(range(1, 5), range(1, 4)):
        lengths = [(steps - 1) * batch + 1 + (rank + steps) % batch for rank in range(size)]
        rows = [[(rank, place) for place in range(length)] for rank, length in enumerate(lengths)]
        mine = [{"x": torch.tensor(row), "name": str(row)} for row in rows[me]]
        loader = acc.prepare_data_loader(DataLoader(Stream(mine), batch), shard=False)
        gathered = [acc.gather_for_metrics(part) for part in loader]
        assert len(gathered) == steps
        for step, found in enumerate(gathered):
            wanted = [pair for row in rows for pair in row[step * batch : (step + 1) * batch]]
            assert [tuple(pair) for pair in found["x"].tolist()] == wanted
            assert found["name"] == [str(pair) for pair in wanted]
        acc.free_memory()


def check_uneven_inputs_of_every_kind_are_joined(acc: Accelerator) -> None:
    """join_uneven_inputs(even_batches=False) makes streams and handed-out loaders uneven for the block, too, and training goes through."""
    for dispatch in (False, True):
        acc.dataloader_config = DataLoaderConfiguration(dispatch_batches=dispatch)
        data = Stream([torch.ones(1)] * (2 * acc.num_processes + 1))
        model, loader = acc.prepare(nn.Linear(1, 1), DataLoader(data, 1))
        with acc.join_uneven_inputs([model], even_batches=False):
            steps = 0
            for x in loader:
                acc.backward(model(x).sum())
                steps += 1
        assert steps == (3 if acc.is_main_process else 2)
        acc.wait_for_everyone()
        assert len(list(loader)) == 3
        acc.dataloader_config = DataLoaderConfiguration()
        acc.free_memory()


if __name__ == "__main__":
    run_checks(globals(), sys.argv[1])
