"""What is prepared again, in another order, or by another Accelerator is what it was, and counts as prepared."""

from collections.abc import Iterator
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accelkit import Accelerator, AcceleratorState, GradientState


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No state of another test."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def make_parts() -> tuple[nn.Module, torch.optim.Optimizer, Any, DataLoader[Any]]:
    """A model of one weight and all that trains it."""
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    return model, optimizer, schedule, DataLoader(TensorDataset(torch.ones(4, 1)), batch_size=2)


def counts(acc: Accelerator) -> list[int]:
    """How many objects of each kind are prepared, as checkpoints have them."""
    return [len(kind) for kind in (acc._models, acc._optimizers, acc._schedulers, acc._dataloaders)]


@pytest.mark.parametrize("strategy", ["single", "ddp"])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("how", ["after free_memory", "by another"])
def test_what_was_prepared_is_prepared_again(strategy: str, compiled: bool, how: str) -> None:
    """The very objects come back, wrapped once, and are part of checkpoints again; a view of a loader is not a second loader."""
    made = {"strategy": strategy, "dynamo_backend": "eager" if compiled else None, "cpu": True}
    acc = Accelerator(**made)
    prepared = acc.prepare(*make_parts())
    if how == "by another":
        acc = Accelerator(**made)
    else:
        acc.free_memory()
    for _ in range(2):
        again = acc.prepare(*prepared)
        assert all(first is second for first, second in zip(again, prepared, strict=True))
        assert counts(acc) == [1, 1, 1, 1]
    view = acc.skip_first_batches(prepared[3], 1)
    assert acc.prepare(view) is view
    assert counts(acc) == [1, 1, 1, 1]


@pytest.mark.parametrize("order", list(permutations(range(3))))
@pytest.mark.parametrize("together", [False, True])
def test_a_schedule_finds_its_optimizer_in_any_order(order: tuple[int, ...], together: bool) -> None:
    """Whenever each is prepared, an overflow of the schedule's own optimizer holds it back, and one of another does not."""
    acc = Accelerator(mixed_precision="fp16", cpu=True)
    model, optimizer, schedule, _ = make_parts()
    other, beside, *_ = make_parts()
    beside = acc.prepare(beside)
    parts: list[Any] = [model, optimizer, schedule]
    chosen = [parts[place] for place in order]
    ready = acc.prepare(*chosen) if together else [acc.prepare(part) for part in chosen]
    model, optimizer, schedule = (ready[order.index(place)] for place in range(3))
    rates = []
    for mine, theirs in ((float("inf"), 1.0), (1.0, float("inf")), (1.0, 1.0)):
        acc.backward((model(torch.ones(1, 1)) * mine).sum() + (other.weight * theirs).sum())
        for one in (optimizer, beside):
            one.step()
            one.zero_grad()
        schedule.step()
        rates += schedule.get_last_lr()
    assert rates == [1.0, 0.5, 0.25]
