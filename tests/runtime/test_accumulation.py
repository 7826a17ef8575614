"""Accumulation, schedules and clipping against the plain loop of one process, step by step, over all small lengths."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from accelkit import Accelerator, AcceleratorState, GradientAccumulationPlugin, GradientState


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Each test makes the first Accelerator of its process."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


class Stream(IterableDataset[Any]):
    """Numbers as a stream without a length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.tensor([float(number)]) for number in range(self.length))


def loader(length: int, kind: str = "map") -> DataLoader[Any]:
    """Batches of one number."""
    data: Any = Stream(length) if kind == "stream" else [torch.tensor([float(number)]) for number in range(length)]
    return DataLoader(data, batch_size=1)


def parts() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    """A model of one weight, its optimizer, and a schedule."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def plain(micro_batches: list[tuple[float, bool]], window: int) -> list[tuple[float, float]]:
    """Weight and rate after each micro-batch (a number, and whether it is the last); windows end at the last one."""
    model, optimizer, schedule = parts()
    found, in_window = [], 0
    for number, is_last in micro_batches:
        (model(torch.tensor([[number]])).square().sum() / window).backward()
        in_window += 1
        if in_window == window or is_last:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            in_window = 0
        found.append((model.weight.item(), schedule.get_last_lr()[0]))
    return found


def prepared(acc: Accelerator) -> Any:
    """What trains on one micro-batch, and the list that it fills in."""
    model, optimizer, schedule = acc.prepare(*parts())
    found: list[tuple[float, float]] = []

    def train(batch: torch.Tensor) -> None:
        with acc.accumulate(model):
            acc.backward(model(batch).square().sum())
            acc.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        found.append((model.weight.item(), schedule.get_last_lr()[0]))

    return train, found


@pytest.mark.parametrize("kind", ["map", "stream"])
@pytest.mark.parametrize("together", [True, False])
def test_windows_end_with_the_loader(kind: str, together: bool) -> None:
    """For every length and window, two epochs equal the plain loop after each micro-batch; also where loaders' ends do not count."""
    for length, window in itertools.product(range(1, 8), range(1, 5)):
        plugin = GradientAccumulationPlugin(num_steps=window, sync_with_dataloader=together)
        acc = Accelerator(gradient_accumulation_plugin=plugin)
        train, found = prepared(acc)
        batches = acc.prepare(loader(length, kind))
        for _ in range(2):
            for batch in batches:
                train(batch)
        epoch = [(float(number), together and number == length - 1) for number in range(length)]
        assert found == plain(epoch * 2, window), (length, window)


def test_loaders_side_by_side() -> None:
    """With two loaders in one loop, the shortest one's last batch ends the window, in either order."""
    for first, second, window in itertools.product(range(1, 5), range(1, 5), (1, 2, 3)):
        acc = Accelerator(gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=window))
        train, found = prepared(acc)
        one, two = acc.prepare(loader(first), loader(second))
        for _ in range(2):
            for batch, other in zip(one, two, strict=False):
                train(batch + other)
        length = min(first, second)
        epoch = [(2.0 * number, number == length - 1) for number in range(length)]
        assert found == plain(epoch * 2, window), (first, second, window)


@pytest.mark.parametrize("leave_early", [False, True])
def test_an_evaluation_in_between_changes_nothing(leave_early: bool) -> None:
    """A loop over another loader within an epoch, finished or left by break, counts no micro-batch and ends no window."""
    for length, window in itertools.product(range(1, 6), (1, 2, 3)):
        acc = Accelerator(gradient_accumulation_steps=window)
        train, found = prepared(acc)
        batches, others = acc.prepare(loader(length), loader(3))
        for batch in batches:
            evaluate(others, leave_early)
            train(batch)
        epoch = [(float(number), number == length - 1) for number in range(length)]
        assert found == plain(epoch, window), (length, window)


def evaluate(others: Any, leave_early: bool) -> None:
    """A loop that trains nothing."""
    for index, _ in enumerate(others):
        if leave_early and index == 1:
            break


def test_an_inner_loop_of_its_own() -> None:
    """Nested loops: the inner loader's last batch ends the window, whatever the outer one's place."""
    acc = Accelerator(gradient_accumulation_steps=2)
    train, found = prepared(acc)
    outer, inner = acc.prepare(loader(3), loader(3))
    for _ in outer:
        for batch in inner:
            train(batch)
    assert found == plain([(0.0, False), (1.0, False), (2.0, True)] * 3, 2)


def test_two_models_in_nested_blocks_are_one_micro_batch() -> None:
    """Blocks within a block, or one block with both models, count once: each of a GAN's models moves every other batch."""
    for nested in (True, False):
        acc = Accelerator(gradient_accumulation_steps=2)
        (first, one, _), (second, two, _) = parts(), parts()
        first, one, second, two, batches = acc.prepare(first, one, second, two, loader(5))
        moved = []
        for batch in batches:
            before = (first.weight.item(), second.weight.item())
            with acc.accumulate(*((first,) if nested else (first, second))):
                acc.backward(first(batch + 1).sum())
                one.step()
                one.zero_grad()
                if nested:
                    with acc.accumulate(second):
                        acc.backward(second(batch + 1).sum())
                        two.step()
                        two.zero_grad()
                else:
                    acc.backward(second(batch + 1).sum())
                    two.step()
                    two.zero_grad()
            moved.append(
                tuple(a != b for a, b in zip(before, (first.weight.item(), second.weight.item()), strict=True))
            )
        assert moved == [(False, False), (True, True), (False, False), (True, True), (True, True)]
        acc.step = 0


def test_schedules() -> None:
    """Skipped calls are counted on request, one that follows a metric moves at every call, and none passes its end."""
    acc = Accelerator(gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=3, adjust_scheduler=True))
    model, optimizer, _ = parts()
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=2)
    follows = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    model, optimizer, cycle, follows = acc.prepare(model, optimizer, cycle, follows)
    for micro in range(12):
        with acc.accumulate(model):
            acc.backward(model(torch.ones(1, 1)).sum())
            optimizer.step()
            cycle.step()
            optimizer.zero_grad()
        assert cycle.scheduler.last_epoch == min(2, (micro + 1) // 3)
        follows.step(1.0)
        assert follows.scheduler.last_epoch == micro + 1


@pytest.mark.parametrize("fused", [False, True])
def test_an_overflow_skips_one_optimizer(fused: bool) -> None:
    """Under fp16 each optimizer says whether it skipped, also one whose kernel decides; the factor halves once, after both."""
    acc = Accelerator(mixed_precision="fp16", cpu=True)
    weights = [nn.Parameter(torch.ones(1)) for _ in range(2)]
    optimizers = [acc.prepare(torch.optim.Adam([weight], lr=0.1, fused=fused)) for weight in weights]
    assert acc.scaler is not None
    factor = acc.scaler.get_scale()
    acc.backward((weights[0] * float("inf")).sum())
    acc.backward((weights[1] * 2).sum())
    for optimizer in optimizers:
        acc.unscale_gradients(optimizer)
        optimizer.step()

    assert [optimizer.step_was_skipped for optimizer in optimizers] == [True, False]
    assert weights[0].item() == 1.0
    assert weights[1].item() < 1.0
    assert weights[1].grad is not None
    assert weights[1].grad.item() == 2.0, "unscaled by the factor it was scaled by"
    for optimizer in optimizers:
        optimizer.zero_grad()
    acc.backward((weights[0] + weights[1]).sum())
    assert acc.scaler.get_scale() == factor / 2
    for optimizer in optimizers:
        optimizer.step()
    assert not acc.optimizer_step_was_skipped


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_is_not_due_was_not_skipped(fused: bool) -> None:
    """After an overflow the answer is true until the next micro-batch, also where nobody asked in between."""
    acc = Accelerator(mixed_precision="fp16", cpu=True, gradient_accumulation_steps=2)
    weight = nn.Parameter(torch.ones(1))
    optimizer = acc.prepare(torch.optim.Adam([weight], lr=0.1, fused=fused))
    for ask in (True, False):
        for factor, skipped in ((1.0, False), (float("inf"), True), (1.0, False), (1.0, False)):
            with acc.accumulate():
                acc.backward((weight * factor).sum())
                optimizer.step()
                if ask or not skipped:
                    assert acc.optimizer_step_was_skipped == skipped
                optimizer.zero_grad()
