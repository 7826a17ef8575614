"""Training in every combination of precision, accumulation and kind of loader, in one world, against the plain loop of one process.

python -m tests.distributed.matrix_checks FOLDER
"""

import itertools
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accelkit import Accelerator, AcceleratorState, DataLoaderConfiguration, GradientState, GradScalerKwargs
from tests.distributed.world_checks import Pairs
from tests.support.checks import run_checks

STEPS, BATCH, SAMPLES = 8, 16, 64
DTYPES = {"no": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16}
SCALE = 2.0**10
KINDS = ("map", "stream", "map split", "stream split", "map dispatched", "stream dispatched", "stream split dispatched")
Trained = tuple[list[float], torch.Tensor]
"""The loss of every step, and the weights at the end."""


def parts(precision: str) -> tuple[nn.Module, Any, TensorDataset]:
    """The same model, optimizer and data on every rank; in float64 without mixed precision."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    inputs = torch.linspace(-1, 1, SAMPLES * 4).reshape(SAMPLES, 4)
    targets = inputs.sin().sum(1, keepdim=True)
    if precision == "no":
        model, inputs, targets = model.double(), inputs.double(), targets.double()
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), TensorDataset(inputs, targets)


def weights(model: nn.Module) -> torch.Tensor:
    """All of them, in float64."""
    return torch.cat([one.detach().flatten().double() for one in model.parameters()])


def plain(precision: str) -> Trained:
    """The loop of one process without this library, whole batches."""
    model, optimizer, data = parts(precision)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, enabled=precision == "fp16")
    losses: list[float] = []
    for x, y in itertools.islice(itertools.cycle(DataLoader(data, batch_size=BATCH)), STEPS):
        block: AbstractContextManager[Any] = (
            nullcontext() if precision == "no" else torch.autocast("cpu", DTYPES[precision])
        )
        with block:
            out = model(x)
        loss = nn.functional.mse_loss(out.to(y.dtype), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, weights(model)


def trained(precision: str, accumulate: int, kind: str) -> Trained:
    """The loop of a script on this world's ranks, each with its share."""
    AcceleratorState._reset_state()
    GradientState._reset_state()
    acc = Accelerator(
        mixed_precision=precision,
        gradient_accumulation_steps=accumulate,
        dataloader_config=DataLoaderConfiguration(
            split_batches="split" in kind, dispatch_batches="dispatched" in kind or None
        ),
        kwargs_handlers=[GradScalerKwargs(init_scale=SCALE)],
    )
    model, optimizer, data = parts(precision)
    share = BATCH // accumulate // (1 if "split" in kind else acc.num_processes)
    model, optimizer, loader = acc.prepare(
        model, optimizer, DataLoader(Pairs(data) if "stream" in kind else data, batch_size=share)
    )
    losses: list[float] = []
    for _ in range(STEPS * BATCH // SAMPLES):
        total = torch.zeros((), dtype=torch.float64)
        for x, y in loader:
            with acc.accumulate(model):
                loss = nn.functional.mse_loss(model(x), y)
                acc.backward(loss)
                if acc.sync_gradients:
                    acc.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
            total += loss.detach().double() / accumulate
            if acc.sync_gradients:
                losses.append(float(acc.reduce(total, "mean")))
                total = torch.zeros((), dtype=torch.float64)
    return losses, weights(acc.unwrap_model(model))


def apart(one: Trained, other: Trained) -> float:
    """The largest difference of a loss or a weight."""
    losses = max(abs(a - b) for a, b in zip(one[0], other[0], strict=True))
    return max(losses, float((one[1] - other[1]).abs().max()))


def check_all(_: Accelerator) -> None:
    """Losses and weights are those of one process; every kind of loader gives the very bits that map-style data gives.

    Bounds: in float64 what sums in another order cost; under mixed precision, in which each rank rounds its share of a gradient, twice
    what that precision costs one process.
    """
    exact = plain("no")
    for precision, accumulate in itertools.product(DTYPES, (1, 2, 4)):
        wanted = plain(precision)
        bound = 1e-11 if precision == "no" else 2 * apart(wanted, exact)
        first = trained(precision, accumulate, "map")
        found = apart(first, wanted)
        assert len(first[0]) == STEPS
        assert found <= bound, (precision, accumulate, found, bound)
        for kind in KINDS[1:]:
            other = trained(precision, accumulate, kind)
            assert other[0] == first[0], (precision, accumulate, kind)
            assert torch.equal(other[1], first[1]), (precision, accumulate, kind)


if __name__ == "__main__":
    run_checks(dict(globals()), sys.argv[1])
