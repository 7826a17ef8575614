"""Data loaders on one rank and two: a raw DataLoader, accelkit's prepared one, and Accelerate's where it is installed, in one run.

python bench/loader.py            a line per figure; each ratio is the median of ratios paired round by round
python bench/loader.py --quick    fewer samples and rounds

Every side's batches are counted and the last one compared before anything is timed. Where rank 0 reads for all, raw is what must
be done at least: a broadcast of a size and one of all bytes, per step.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.measure import Samples, headline, interleave, paired, ranks, show, timed

BATCH = 64
Makers = dict[str, Callable[[], Any]]
"""Side -> what makes its loader."""


def data_sets(samples: int) -> dict[str, tuple[Any, Any]]:
    """Sets of samples that cost next to nothing, with their collate functions (None: torch's)."""
    import torch
    from torch.utils.data import Dataset, IterableDataset

    values = torch.randn(samples, 8, generator=torch.Generator().manual_seed(0))

    class Tiny(Dataset[Any]):
        def __len__(self) -> int:
            return samples

        def __getitem__(self, index: int) -> Any:
            return values[index], index

    class Ints(Tiny):
        def __getitem__(self, index: int) -> Any:
            return index

    class Batched(Tiny):
        def __getitem__(self, index: int) -> Any:
            return values[index]

        def __getitems__(self, indices: list[int]) -> Any:
            return values[indices]

    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return ((values[index], index) for index in range(samples))

    return {
        "tiny": (Tiny(), None),
        "ints": (Ints(), torch.tensor),
        "batched": (Batched(), lambda batch: batch),
        "stream": (Stream(), None),
    }


def accelerators(dispatch: bool) -> dict[str, Any]:
    """An Accelerator of each library that is installed."""
    import accelkit

    config = accelkit.DataLoaderConfiguration(dispatch_batches=dispatch)
    found = {"accelkit": accelkit.Accelerator(cpu=True, dataloader_config=config)}
    try:
        import accelerate
    except ImportError:
        return found
    config = accelerate.DataLoaderConfiguration(dispatch_batches=dispatch)
    return {**found, "accelerate": accelerate.Accelerator(cpu=True, dataloader_config=config)}


def walk(loader: Any) -> tuple[int, Any]:
    """An epoch: how many batches, and the last."""
    count, batch = 0, None
    for batch in loader:  # noqa: B007  (the last one is wanted)
        count += 1
    return count, batch


class RawDispatch:
    """What handing out must do at least: rank 0 reads a batch per rank, two broadcasts, every rank slices its own."""

    def __init__(self, loader: Any, rank: int, size: int) -> None:
        self.loader, self.rank, self.size = loader, rank, size

    def __iter__(self) -> Iterator[Any]:
        import torch
        import torch.distributed as dist

        source, width = iter(self.loader), 32
        while True:
            parts = list(islice(source, self.size)) if self.rank == 0 else []
            head = torch.tensor([sum(len(part[1]) for part in parts)])
            dist.broadcast(head, 0)
            rows = int(head)
            if not rows:
                return
            buffer = torch.empty(rows * (width + 8), dtype=torch.uint8)
            if self.rank == 0:
                buffer[: rows * width] = torch.cat([part[0] for part in parts]).view(-1).view(torch.uint8)
                buffer[rows * width :] = torch.cat([part[1] for part in parts]).view(torch.uint8)
            dist.broadcast(buffer, 0)
            mine = slice(self.rank * rows // self.size, (self.rank + 1) * rows // self.size)
            numbers = buffer[rows * width :].view(torch.int64)
            yield [buffer[: rows * width].view(torch.float32).view(rows, 8)[mine], numbers[mine]]


def compare(makers: Makers, rounds: int, steps: Callable[[Any], Any] = walk) -> Samples:
    """Time every side; each side's loader is made anew for every round, outside the clock."""
    sides = {}
    for name, make in makers.items():

        def run(make: Callable[[], Any] = make) -> float:
            loader = make()
            return timed(lambda: steps(loader))()

        sides[name] = run
    return interleave(sides, rounds)


def check(what: str, makers: Makers, expected: int) -> dict[str, int]:
    """How many steps each side makes; ours must make as many as are right."""
    counts = {name: walk(make())[0] for name, make in makers.items()}
    assert counts["accelkit"] == expected, f"{what}: {counts['accelkit']} steps, {expected} are right"
    return {name: count for name, count in counts.items() if count != expected}


class Setup:
    """The libraries that are compared, and the loaders that each makes of the same data."""

    def __init__(self, dispatch: bool) -> None:
        self.dispatch = dispatch
        self.libraries = accelerators(dispatch)
        self.rank = self.libraries["accelkit"].process_index
        self.size = self.libraries["accelkit"].num_processes

    def loader(self, data: Any, collate: Any, **more: Any) -> Any:
        """The script's loader."""
        from torch.utils.data import DataLoader

        return DataLoader(data, batch_size=BATCH, collate_fn=collate, **more)

    def raw(self, data: Any, collate: Any, shuffle: bool = False) -> Any:
        """The least that does the same without a library."""
        from torch.utils.data import DistributedSampler

        if self.dispatch:
            return RawDispatch(self.loader(data, collate), self.rank, self.size)
        if self.size == 1:
            return self.loader(data, collate, shuffle=shuffle)
        return self.loader(data, collate, sampler=DistributedSampler(data, self.size, self.rank, shuffle=shuffle))

    def prepared(self, data: Any, collate: Any, shuffle: bool = False) -> dict[str, Any]:
        """Each library's loader."""
        return {n: acc.prepare(self.loader(data, collate, shuffle=shuffle)) for n, acc in self.libraries.items()}

    def sides(self, data: Any, collate: Any, shuffle: bool = False) -> Makers:
        """Raw, and each library's loader, which is used again and again."""
        prepared = self.prepared(data, collate, shuffle)
        return {"raw": lambda: self.raw(data, collate, shuffle), **{n: lambda p=p: p for n, p in prepared.items()}}

    def views(self, data: Any, collate: Any, skipped: int) -> Makers:
        """What is left of an epoch after `skipped` steps. Raw is a loader of a data set that begins there."""
        import torch

        rest = torch.utils.data.Subset(data, range(skipped * BATCH * self.size, len(data)))
        views: Makers = {"raw": lambda: self.raw(rest, collate)}
        for name, loader in self.prepared(data, collate).items():
            views[name] = lambda n=name, p=loader: self.libraries[n].skip_first_batches(p, skipped)
        return views


def first_batch(loader: Any) -> Any:
    """The first batch of an epoch."""
    return next(iter(loader))


def worker(dispatch: bool, quick: bool) -> None:
    """What each rank does: every figure of every side, printed as JSON by rank 0."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    samples, rounds = (20_000, 3) if quick else (200_000, 7)
    setup, sets = Setup(dispatch), data_sets(samples)
    steps = -(-samples // (BATCH * setup.size))
    found: dict[str, Any] = {}
    for name in ("tiny", "stream") if dispatch else ("tiny", "ints", "batched"):
        makers = setup.sides(*sets[name])
        check(name, makers, steps)
        found[name] = compare(makers, rounds)
    if not dispatch:
        found["ints, shuffled"] = compare(setup.sides(*sets["ints"], shuffle=True), rounds)
        found["ints, first batch"] = compare(setup.sides(*sets["ints"]), 3 * rounds, first_batch)
    skipped = int(steps * 0.9)
    views = setup.views(*sets["tiny"], skipped)
    wrong = check("skip", views, steps - skipped)
    found["tiny, the last tenth"] = compare(views, rounds)
    if setup.size == 1:
        found["tiny, first batch at 90 %"] = compare(views, 3 * rounds, first_batch)
    if setup.size > 1:
        dist.barrier()
    if setup.rank == 0:
        print(json.dumps({"figures": found, "wrong": wrong, "steps": steps}), flush=True)


GOALS = {"dispatch": {"tiny": 0.6, "stream": 0.6, "tiny, the last tenth": 0.05}}


def report(title: str, result: dict[str, Any], goals: dict[str, float], parity: float | None) -> None:
    """A line per figure and ratio."""
    headline(title)
    for name, samples in result["figures"].items():
        single = "first batch" in name
        count = 1 if single else result["steps"] // 10 if "tenth" in name else result["steps"]
        raw = paired(samples["raw"], [1.0] * len(samples["raw"]))
        show(f"{name}: raw", raw.times(1e6 / count), " us per batch")
        bound = None if parity is None else 2.0 if single else parity
        show(f"{name}: accelkit / raw", paired(samples["accelkit"], samples["raw"]), goal=bound)
        if "accelerate" in samples:
            show(f"{name}: accelerate / raw", paired(samples["accelerate"], samples["raw"]))
            show(
                f"{name}: accelkit / accelerate",
                paired(samples["accelkit"], samples["accelerate"]),
                goal=goals.get(name),
            )
    for name, count in result["wrong"].items():
        print(f"after skipping 90 %, {name} makes {count} steps, which is wrong", flush=True)


def main() -> None:
    """Start the ranks of each comparison, one comparison after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer samples and rounds")
    parser.add_argument("--worker", choices=("share", "dispatch"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.worker == "dispatch", arguments.quick)
        return
    more = ["--quick"] if arguments.quick else []
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH")])
    )
    for title, way, size in (
        ("Prepared loader, 1 rank", "share", 1),
        ("Prepared loader, 2 ranks", "share", 2),
        ("Rank 0 reads for all, 2 ranks", "dispatch", 2),
    ):
        result: Any = ranks(Path(__file__), ["--worker", way, *more], size)
        report(title, result, GOALS.get(way, {}), None if way == "dispatch" else 1.05)


if __name__ == "__main__":
    main()
