"""An Accelerator in a process alone: the loop, its parts, precision, and what a run leaves behind."""

import copy
import inspect
import io
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accelkit import (
    AcceleratedOptimizer,
    Accelerator,
    AcceleratorState,
    AutocastKwargs,
    GradientAccumulationPlugin,
    GradientState,
    PartialState,
    SettingError,
)


@pytest.fixture(autouse=True)
def fresh_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No state of another test, no world of the caller's; determinism is switched off again."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    threads = torch.get_num_threads()
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


def make_parts() -> tuple[nn.Module, torch.optim.Optimizer, DataLoader[Any], Any]:
    """A small model and all that trains it, always the same."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    data = torch.linspace(-1, 1, 60).reshape(20, 3)
    loader = DataLoader(TensorDataset(data, data.sum(1, keepdim=True)), batch_size=4)
    return model, optimizer, loader, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)


def weights(model: nn.Module) -> torch.Tensor:
    """All parameters in a row."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def plain_loop(steps: int, accumulate: int = 1) -> torch.Tensor:
    """Weights after the loop that one writes without any library."""
    model, optimizer, loader, schedule = make_parts()
    for _ in range(steps):
        for index, (x, y) in enumerate(loader):
            (nn.functional.mse_loss(model(x), y) / accumulate).backward()
            if (index + 1) % accumulate == 0 or index + 1 == len(loader):
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
    return weights(model)


@pytest.mark.parametrize("accumulate", [1, 2, 3])
def test_the_prepared_loop_is_the_plain_loop(accumulate: int) -> None:
    """Epochs of training give the very bits of the plain loop, whatever the order of arguments, with a short last window too."""
    acc = Accelerator(gradient_accumulation_steps=accumulate)
    model, optimizer, loader, schedule = make_parts()
    schedule, loader, optimizer, model = acc.prepare(schedule, loader, optimizer, model)
    for _ in range(3):
        for x, y in loader:
            with acc.accumulate(model):
                acc.backward(nn.functional.mse_loss(model(x), y))
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()

    assert torch.equal(weights(model), plain_loop(3, accumulate))


def test_a_state_of_one_process() -> None:
    """One process: main, last, undistributed, no process group; states are single objects."""
    acc = Accelerator()

    assert (acc.num_processes, acc.process_index, acc.local_process_index) == (1, 0, 0)
    assert acc.is_main_process
    assert acc.is_last_process
    assert acc.is_local_main_process
    assert not acc.use_distributed
    assert acc.distributed_type == "NO"
    assert acc.strategy == "single"
    assert not torch.distributed.is_initialized()
    assert PartialState() is PartialState()
    assert GradientState() is acc.gradient_state
    assert AcceleratorState() is acc.state
    assert acc.state.device == acc.device
    value = {"x": torch.ones(1)}
    assert acc.gather(value) is value
    assert acc.gather(["anything"]) == ["anything"]
    assert acc.broadcast(value) is value
    assert acc.pad_across_processes(value) is value
    assert acc.gather_object([1]) == [1]
    assert acc.gather_for_metrics("text") == "text"
    reduced = acc.reduce(value)
    assert reduced["x"] is not value["x"]
    assert torch.equal(reduced["x"], value["x"])
    with acc.split_between_processes([1, 2]) as part:
        assert part == [1, 2]
    assert acc.on_process(process_index=5)(lambda: "ran")() == "ran"


def test_preparing_is_idempotent_and_leaves_the_rest_alone() -> None:
    """What was prepared, and what it was prepared from, give the same again; other objects pass through."""
    acc = Accelerator()
    parts = make_parts()
    prepared = acc.prepare(*parts)
    other = object()

    assert acc.prepare(other) is other
    assert acc.prepare(None, 3, other) == (None, 3, other)
    for again in (acc.prepare(*parts), acc.prepare(*prepared)):
        assert all(first is second for first, second in zip(again, prepared, strict=True))
    assert acc.unwrap_model(prepared[0]) is parts[0]
    assert isinstance(prepared[1], torch.optim.Optimizer)
    view = acc.skip_first_batches(prepared[2], 2)
    assert acc.prepare(view) is view
    with pytest.raises(SettingError, match="prepare first"):
        acc.prepare(acc.skip_first_batches(make_parts()[2], 2))
    with pytest.raises(ValueError, match="2 entries for 1 objects"):
        acc.prepare(parts[0], device_placement=[True, False])
    assert acc.free_memory(1, 2) == [None, None]


def test_ddp_of_one_rank_is_possible() -> None:
    """Asked for ddp in one process, it is done, without an address or a port."""
    acc = Accelerator(strategy="ddp")
    model = make_parts()[0]
    wrapped = acc.prepare(model)

    assert type(wrapped).__name__ == "DistributedDataParallel"
    acc.backward(wrapped(torch.ones(2, 3)).sum())
    assert acc.unwrap_model(wrapped) is model


def test_a_further_accelerator_shares_the_settings_of_the_first() -> None:
    """It takes over precision and steps, and contradictions are refused."""
    Accelerator(mixed_precision="bf16", gradient_accumulation_steps=4)

    assert Accelerator().mixed_precision == "bf16"
    assert Accelerator().gradient_accumulation_steps == 4
    with pytest.raises(SettingError, match="already been initialized"):
        Accelerator(mixed_precision="no")
    with pytest.raises(SettingError, match="both given"):
        Accelerator(gradient_accumulation_steps=2, gradient_accumulation_plugin=GradientAccumulationPlugin(3))


def test_accumulation_counts_micro_batches() -> None:
    """Every n-th step synchronises, one of two models in one block counts once, and the counter restarts with a loader's end."""
    acc = Accelerator(gradient_accumulation_steps=2)
    a, b = nn.Linear(1, 1), nn.Linear(1, 1)
    synced = []
    for _ in range(4):
        with acc.accumulate(a, b):
            synced.append(acc.sync_gradients)
    assert synced == [False, True, False, True]
    loader = acc.prepare(DataLoader(torch.zeros(5), batch_size=1))
    synced = []
    for _ in loader:
        with acc.accumulate():
            synced.append(acc.sync_gradients)
    assert synced == [False, True, False, True, True]
    assert acc.step == 0


def test_nothing_is_stepped_or_clipped_between_windows() -> None:
    """While accumulating, step, zero_grad, clipping and the scheduler leave everything as it is."""
    acc = Accelerator(gradient_accumulation_steps=2)
    model, optimizer, _, schedule = acc.prepare(*make_parts())
    before = weights(model)
    with acc.accumulate(model):
        acc.backward(model(torch.full((1, 3), 100.0)).sum())
        gradient = model[0].weight.grad.clone()
        norm = acc.clip_grad_norm_(model.parameters(), 1e-3)
        acc.clip_grad_value_(model.parameters(), 1e-3)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    assert torch.equal(weights(model), before)
    assert torch.equal(model[0].weight.grad, gradient)
    assert norm > 1e-3
    assert schedule.last_epoch == 0
    assert not optimizer.step_was_skipped


def test_the_optimizer_is_what_it_was() -> None:
    """State goes in and out of the inner optimizer; groups, copies and pickles work; schedulers can be made of the wrapper."""
    acc = Accelerator()
    model, optimizer, _, _ = make_parts()
    wrapped = acc.prepare(optimizer)
    model(torch.ones(1, 3)).sum().backward()
    wrapped.step()
    other = AcceleratedOptimizer(make_parts()[1])
    other.load_state_dict(wrapped.state_dict())

    assert len(other.optimizer.state) == 4
    assert wrapped.param_groups is optimizer.param_groups
    assert pickle.loads(pickle.dumps(wrapped)).optimizer.defaults == optimizer.defaults
    assert copy.deepcopy(wrapped).param_groups[0]["lr"] == 0.05
    schedule = torch.optim.lr_scheduler.StepLR(wrapped, 1, gamma=0.5)
    wrapped.step()
    acc.prepare(schedule).step()
    assert optimizer.param_groups[0]["lr"] == 0.025

    class Plain(torch.optim.SGD):
        def zero_grad(self) -> None:  # type: ignore[override]
            super().zero_grad()

    with pytest.raises(ValueError, match="set_to_none"):
        AcceleratedOptimizer(Plain([nn.Parameter(torch.ones(1))])).zero_grad(set_to_none=True)


def test_a_schedule_never_passes_its_end() -> None:
    """OneCycle, stepped more often than its total, stays where it is instead of raising."""
    acc = Accelerator()
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=3)
    optimizer, schedule = acc.prepare(optimizer, schedule)
    for _ in range(6):
        optimizer.step()
        schedule.step()
    assert schedule.last_epoch == 3


class Picky(nn.Module):
    """Says in which type it computed."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, *, fail: bool = False) -> dict[str, Any]:
        """Compute, or fail in the middle."""
        out = self.linear(x)
        if fail:
            raise RuntimeError("in the middle")
        return {"out": out, "seen": [str(out.dtype)], "n": 3}


def test_bf16_computes_in_bf16_and_gives_float32() -> None:
    """Forward runs under autocast, outputs come back as float32 in their structure, weights stay float32, errors leave no trace."""
    acc = Accelerator(mixed_precision="bf16")
    model = Picky()
    signature = inspect.signature(model.forward)
    ready = acc.prepare(model)
    out = ready(torch.ones(1, 2))

    assert ready is model
    assert out["seen"] == ["torch.bfloat16"]
    assert out["out"].dtype == torch.float32
    assert model.linear.weight.dtype == torch.float32
    assert inspect.signature(ready.forward) == signature
    with pytest.raises(RuntimeError, match="in the middle"):
        ready(torch.ones(1, 2), fail=True)
    assert not torch.is_autocast_enabled("cpu")
    acc.prepare(ready)
    assert len(ready._forward_hooks) == 1, "prepared twice, wrapped once"
    with acc.autocast():
        assert torch.ones(1, 2).matmul(torch.ones(2, 1)).dtype == torch.bfloat16
    with acc.autocast(AutocastKwargs(enabled=False)):
        assert torch.ones(1, 2).matmul(torch.ones(2, 1)).dtype == torch.float32


def test_a_copy_of_a_prepared_model_is_a_model_of_its_own() -> None:
    """Deep copies and pickles run on their own weights, in the same precision; taking the hooks off gives float32 back."""
    acc = Accelerator(mixed_precision="bf16")
    model = acc.prepare(Picky())
    twin = copy.deepcopy(model)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    with torch.no_grad():
        model.linear.weight.zero_()

    for other in (twin, loaded):
        out = other(torch.ones(1, 2))
        assert out["seen"] == ["torch.bfloat16"]
        assert out["out"].abs().sum() > 0
    assert not torch.is_autocast_enabled("cpu")
    bare = acc.unwrap_model(model, keep_fp32_wrapper=False)
    assert bare is model
    assert bare(torch.ones(1, 2))["seen"] == ["torch.float32"]
    assert twin(torch.ones(1, 2))["seen"] == ["torch.bfloat16"]
