"""What a prepared training step costs over raw PyTorch, beside Accelerate, on one and two CPU ranks.

    python bench/step.py [ROUNDS]

All sides run in the same processes, in turn, from the same weights on the same data; on one rank their final losses must be equal.
"""

import contextlib
import copy
import json
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from measure import Spread, headline, interleave, paired, ranks, show

STEPS, BATCH = 400, 8
LIBRARIES = ("accelkit", "accelerate")
CASES = ((1, 1), (1, 4), (2, 1), (2, 4))
"""Ranks, micro-batches per optimizer step."""


class Sides:
    """What is compared, in one rank: every side has the same weights, data and order."""

    def __init__(self, accumulate: int) -> None:
        import torch
        from torch import nn

        torch.set_num_threads(1)
        self.accumulate = accumulate
        self.size, self.rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
        self.facades = {
            name: import_module(name).Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
            for name in LIBRARIES
        }
        torch.manual_seed(0)
        self.base = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        count = BATCH * self.size * STEPS
        self.data = torch.utils.data.TensorDataset(torch.randn(count, 16), torch.randint(0, 4, (count,)))
        self.criterion = nn.CrossEntropyLoss()
        self.last: dict[str, Any] = {}
        """Side -> its last loss."""

    def parts(self) -> tuple[Any, Any, Any]:
        """Model, optimizer and schedule of a side."""
        import torch

        model = copy.deepcopy(self.base)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)

    def raw(self) -> Callable[[], float]:
        """Plain PyTorch; its figure is seconds a micro-batch."""
        from torch import nn
        from torch.utils.data import DataLoader
        from torch.utils.data.distributed import DistributedSampler

        model, optimizer, schedule = self.parts()
        sampler = None
        if self.size > 1:
            model = nn.parallel.DistributedDataParallel(model)
            sampler = DistributedSampler(self.data, self.size, self.rank, shuffle=False)
        loader = DataLoader(self.data, batch_size=BATCH, sampler=sampler)
        accumulate, criterion, size = self.accumulate, self.criterion, self.size

        def epoch() -> float:
            start = time.perf_counter()
            for number, (inputs, targets) in enumerate(loader, 1):
                due = number % accumulate == 0
                with contextlib.nullcontext() if due or size == 1 else model.no_sync():
                    loss = criterion(model(inputs), targets)
                    (loss / accumulate if accumulate > 1 else loss).backward()
                if due:
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
            self.last["raw"] = loss.detach()
            return (time.perf_counter() - start) / STEPS

        return epoch

    def prepared(self, name: str) -> Callable[[], float]:
        """A library's way; its figure is seconds a micro-batch."""
        from torch.utils.data import DataLoader

        facade, criterion = self.facades[name], self.criterion
        model, optimizer, schedule = self.parts()
        loader = DataLoader(self.data, batch_size=BATCH)
        model, optimizer, loader, schedule = facade.prepare(model, optimizer, loader, schedule)

        def epoch() -> float:
            start = time.perf_counter()
            for inputs, targets in loader:
                with facade.accumulate(model):
                    loss = criterion(model(inputs), targets)
                    facade.backward(loss)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
            self.last[name] = loss.detach()
            return (time.perf_counter() - start) / STEPS

        return epoch


def worker(accumulate: int, rounds: int) -> None:
    """One rank: measure every side and print the samples."""
    import torch
    from torch import distributed

    sides = Sides(accumulate)
    works = {"raw": sides.raw(), **{name: sides.prepared(name) for name in LIBRARIES}}
    samples = interleave(works, rounds, warmup=2)
    if sides.size == 1:
        assert all(torch.allclose(loss, sides.last["raw"], rtol=1e-4) for loss in sides.last.values()), sides.last
    if sides.rank == 0:
        print(json.dumps(samples), flush=True)
    if sides.size > 1:
        distributed.barrier()
        distributed.destroy_process_group()


def main() -> None:
    """Measure and print."""
    rounds = sys.argv[1] if len(sys.argv) > 1 else "20"
    headline("a step of a tiny network, 8 samples a rank")
    for size, accumulate in CASES:
        samples: Any = ranks(__file__, ["--worker", str(accumulate), rounds], size)
        what = f"{size} rank{'s' * (size > 1)}, {accumulate} micro-batch{'es' * (accumulate > 1)} a step"
        over = {name: [(a - b) * 1e6 for a, b in zip(samples[name], samples["raw"], strict=True)] for name in LIBRARIES}
        show(f"{what}: raw", Spread.of(samples["raw"]).times(1e6), " us")
        for name in LIBRARIES:
            goal = 1.20 if name == "accelkit" else None
            show(f"{what}: {name} / raw", paired(samples[name], samples["raw"]), "", goal)
            show(
                f"{what}: {name} over raw",
                Spread.of(over[name]),
                " us",
                60 if name == "accelkit" and size == 1 else None,
            )
        if size == 1:
            show(f"{what}: overhead, accelkit / accelerate", paired(over["accelkit"], over["accelerate"]), "", 0.35)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(int(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
