"""The checks. Each takes the accelerator, talks to all ranks, and raises CheckFailed; its docstring is its name."""

import copy
from collections.abc import Callable
from typing import Final

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accelkit.runtime import Accelerator, set_seed

BOUND: Final = 1e-5
"""How far the parameters of N ranks may be from one rank's after TRAIN_STEPS steps in float32: sums are taken in another order."""
TRAIN_STEPS: Final = 8


class CheckFailed(Exception):
    """What was expected and what came."""


def _expect(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise CheckFailed(f"{what}: expected {wanted}, got {found}")


def collectives(accelerator: Accelerator) -> None:
    """Collectives give the known values."""
    rank, size = accelerator.process_index, accelerator.num_processes
    mine = torch.tensor([rank], device=accelerator.device)
    _expect(accelerator.gather(mine).tolist(), list(range(size)), "gather")
    _expect(accelerator.reduce(mine.clone(), "sum").tolist(), [size * (size - 1) // 2], "reduce")
    nested = accelerator.gather({"a": mine, "b": (mine.bool(), mine.to(torch.bfloat16))})
    _expect(nested["b"][0].tolist(), [bool(r) for r in range(size)], "gather of a nested structure")
    last = size - 1
    _expect(accelerator.broadcast([mine.clone()], from_process=last)[0].tolist(), [last], "broadcast")
    padded = accelerator.pad_across_processes(torch.ones(rank + 1, device=accelerator.device))
    _expect(list(padded.shape), [size], "pad_across_processes")


def objects(accelerator: Accelerator) -> None:
    """Objects are gathered in the order of ranks."""
    found = accelerator.gather_object([("rank", accelerator.process_index)])
    _expect(found, [("rank", r) for r in range(accelerator.num_processes)], "gather_object")


def loader(accelerator: Accelerator) -> None:
    """A sharded loader gives what an unsharded one gives."""
    size = accelerator.num_processes
    data = TensorDataset(torch.arange(8 * size))
    seen = [batch for (batch,) in accelerator.prepare_data_loader(DataLoader(data, batch_size=2))]
    mine = torch.cat(seen).reshape(-1, 2)
    everyone = accelerator.gather(mine).reshape(size, -1, 2).transpose(0, 1).reshape(-1)
    _expect(everyone.tolist(), list(range(8 * size)), "order over all ranks")


def metrics(accelerator: Accelerator) -> None:
    """Gathered metrics hold every sample once."""
    for length in (1, 2, 7, 16, 17):
        prepared = accelerator.prepare_data_loader(DataLoader(TensorDataset(torch.arange(length)), batch_size=3))
        found = [value for (batch,) in prepared for value in accelerator.gather_for_metrics(batch).tolist()]
        _expect(found, list(range(length)), f"samples of {length}")


def seeds(accelerator: Accelerator) -> None:
    """The same seed gives the same numbers on every rank, a seed of each device's own different ones."""
    for of_its_own, different in ((False, 1), (True, accelerator.num_processes)):
        set_seed(11, device_specific=of_its_own)
        drawn = accelerator.gather(torch.rand(1, dtype=torch.float64, device=accelerator.device))
        _expect(len(set(drawn.tolist())), different, f"different numbers with device_specific={of_its_own}")


def training(accelerator: Accelerator) -> None:
    """Training on all ranks equals training on one."""
    set_seed(3)
    size = accelerator.num_processes
    inputs = torch.randn(TRAIN_STEPS * 4 * size, 6)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    alone = copy.deepcopy(model).to(accelerator.device)
    _train_alone(alone, data, 4 * size, accelerator.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    prepared, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=4))
    for features, targets in batches:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.mse_loss(prepared(features), targets))
        optimizer.step()
    ours = accelerator.unwrap_model(prepared)
    pairs = zip(alone.parameters(), ours.parameters(), strict=True)
    worst = max(float((a - b).abs().max()) for a, b in pairs)
    if accelerator.mixed_precision == "no" and worst > BOUND:
        raise CheckFailed(f"parameters differ by {worst:.2e}, allowed {BOUND:.0e}")


def _train_alone(model: nn.Module, data: TensorDataset, batch_size: int, device: torch.device) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for features, targets in DataLoader(data, batch_size=batch_size):
        optimizer.zero_grad()
        loss: torch.Tensor = nn.functional.mse_loss(model(features.to(device)), targets.to(device))
        torch.autograd.backward(loss)
        optimizer.step()


CHECKS: Final[tuple[Callable[[Accelerator], None], ...]] = (collectives, objects, loader, metrics, seeds, training)
