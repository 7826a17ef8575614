"""Mixed precision on this machine: what is computed in which type, scaling of losses, and what is refused."""

import copy
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from accelkit import Accelerator, AcceleratorState, AutocastKwargs, GradientState
from accelkit.runtime import available, float8
from accelkit.runtime.errors import SettingError, UnsupportedError
from accelkit.runtime.settings import AORecipeKwargs, GradScalerKwargs
from accelkit.utils import get_mixed_precision_context_manager


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Each test makes the first Accelerator of its process."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


class Typed(nn.Module):
    """Shows the type in which its linear layer computes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.seen: list[torch.dtype] = []

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        """A structure around the layer's output."""
        y = self.inner(x)
        self.seen.append(y.dtype)
        return {"y": y, "n": (y.sum(), 1)}


@pytest.mark.parametrize(("name", "dtype"), [("no", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_a_model_computes_in_the_type_and_answers_in_float32(name: str, dtype: torch.dtype) -> None:
    """Layers compute in the type of the precision, outputs and weights are float32, and training moves them."""
    acc = Accelerator(mixed_precision=name, cpu=True)
    inner = Typed()
    model, optimizer = acc.prepare(inner, torch.optim.SGD(inner.parameters(), lr=0.1))
    before = inner.inner.weight.clone()
    out = model(torch.ones(3, 2))
    acc.backward(out["n"][0] * 0.01)  # small enough for the first scale of fp16
    optimizer.step()

    assert inner.seen == [dtype]
    assert out["y"].dtype == out["n"][0].dtype == inner.inner.weight.dtype == torch.float32
    assert not torch.equal(before, inner.inner.weight)
    assert (acc.scaler is not None) == (name == "fp16")
    with acc.autocast():
        assert inner.inner(torch.ones(1, 2)).dtype == dtype
    with get_mixed_precision_context_manager(native_amp=acc.native_amp):
        assert inner.inner(torch.ones(1, 2)).dtype == dtype
    with acc.autocast(AutocastKwargs(enabled=False)):
        assert inner.inner(torch.ones(1, 2)).dtype == torch.float32


def test_handlers_reach_autocast_and_scaler() -> None:
    """Arguments of the handlers arrive; a recipe for fp8 without fp8 is refused."""
    handlers = [AutocastKwargs(enabled=False), GradScalerKwargs(init_scale=8.0)]
    acc = Accelerator(mixed_precision="fp16", cpu=True, kwargs_handlers=handlers)
    model = acc.prepare(Typed())
    model(torch.ones(1, 2))

    assert acc.scaler is not None
    assert acc.scaler.get_scale() == 8.0
    assert model.seen == [torch.float32]
    assert acc.autocast_handler is handlers[0]
    assert acc.ddp_handler is None
    with pytest.raises(SettingError, match="fp8"):
        Accelerator(mixed_precision="fp16", kwargs_handlers=[AORecipeKwargs()])


def test_fp8_is_refused_where_it_cannot_be_computed() -> None:
    """fp8 on a CPU is an error that says what is missing and what can be had, never another precision."""
    with pytest.raises(UnsupportedError, match=r"fp8.* is not available"):
        Accelerator(mixed_precision="fp8", cpu=True)


@pytest.mark.skipif(not available.is_torchao_available(), reason="torchao is not installed")
def test_fp8_emulated() -> None:
    """With a recipe that emulates, inner linear layers multiply in 8 bits, and keep the optimizer's parameters."""
    from torchao.float8 import Float8LinearConfig

    recipe = AORecipeKwargs(config=Float8LinearConfig(emulate=True))
    acc = Accelerator(mixed_precision="fp8", cpu=True, kwargs_handlers=[recipe])
    inner = nn.Sequential(*(nn.Linear(32, 32) for _ in range(4)), nn.Linear(32, 5))
    parameters = list(inner.parameters())
    model, optimizer = acc.prepare(inner, torch.optim.SGD(inner.parameters(), lr=0.1))
    before = inner[1].weight.clone()
    acc.backward(model(torch.randn(16, 32)).square().sum())
    optimizer.step()

    assert [type(layer).__name__ for layer in inner] == ["Linear", *["Float8Linear"] * 3, "Linear"]
    assert all(one is other for one, other in zip(parameters, inner.parameters(), strict=True))
    assert not torch.equal(before, inner[1].weight)
    assert float8.has_ao_layers(model)


@pytest.mark.parametrize("name", ["fp7", ""])
def test_unknown_names(name: str) -> None:
    """A name that is no precision is refused with those that are."""
    if name:
        with pytest.raises(SettingError, match=r"Unknown mixed_precision mode.*no, bf16, fp16, fp8"):
            Accelerator(mixed_precision=name)
    else:
        assert Accelerator(mixed_precision=None).mixed_precision == "no"


def test_an_overflow_skips_the_step_and_the_schedule() -> None:
    """With a scaler, a step whose gradients overflow is skipped, said so, and the next one happens; clipping unscales once."""
    acc = Accelerator(mixed_precision="fp16", cpu=True)
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    optimizer, schedule = acc.prepare(optimizer, schedule)
    acc.backward((weight * float("inf")).sum())
    optimizer.step()
    schedule.step()

    assert optimizer.step_was_skipped
    assert acc.optimizer_step_was_skipped
    assert weight.item() == 1.0
    assert schedule.last_epoch == 0
    optimizer.zero_grad()
    acc.backward((weight * 4).sum())
    assert acc.clip_grad_norm_([weight], 1.0).item() == 4.0
    acc.clip_grad_value_([weight], 0.5)
    optimizer.step()
    schedule.step()
    assert not optimizer.step_was_skipped
    assert weight.item() == 0.75
    assert schedule.last_epoch == 1


def test_clipping_for_several_optimizers_acts_on_true_gradients() -> None:
    """Where two models step in turn, as a GAN's do, each is clipped by the norm it has without a scaler, at every step."""
    acc = Accelerator(mixed_precision="fp16", cpu=True)
    weights = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizers = [acc.prepare(torch.optim.SGD([weight], lr=1.0)) for weight in weights]
    for step in range(1, 4):
        for weight, optimizer in zip(weights, optimizers, strict=True):
            acc.backward(-4 * weight.sum())
            assert acc.clip_grad_norm_([weight], 0.5).item() == 4.0
            assert acc.clip_grad_norm_([weight], 0.5).item() == pytest.approx(0.5), "unscaled once"
            optimizer.step()
            optimizer.zero_grad()
            assert weight.item() == pytest.approx(step / 2, abs=1e-4)


def _scaled(*weights: nn.Parameter) -> tuple[Accelerator, list[Any]]:
    """An Accelerator whose scaler changes its factor at every step, and an optimizer for each weight."""
    settings = GradScalerKwargs(init_scale=4.0, growth_interval=1)
    acc = Accelerator(mixed_precision="fp16", cpu=True, kwargs_handlers=[settings])
    return acc, [acc.prepare(torch.optim.SGD([weight], lr=1.0)) for weight in weights]


@pytest.mark.parametrize("order", ["step first", "losses apart"])
def test_clipping_for_one_optimizer_leaves_the_gradients_of_others_right(order: str) -> None:
    """Whether another optimizer has stepped already, or has yet to get its gradients, each steps by its true ones."""
    weights = [nn.Parameter(torch.ones(1)) for _ in range(2)]
    acc, optimizers = _scaled(*weights)
    if order == "step first":
        acc.backward((weights[0] + weights[1]).sum() / 4)
        optimizers[0].step()
        assert acc.clip_grad_norm_([weights[1]], 9.0).item() == 0.25
        optimizers[1].step()
    else:
        for weight in weights:
            acc.backward(weight.sum() / 4)
            assert acc.clip_grad_norm_([weight], 9.0).item() == 0.25
        for optimizer in optimizers:
            optimizer.step()
    assert [weight.item() for weight in weights] == [0.75, 0.75]


@pytest.mark.parametrize("value", [0.25, float("inf")])
def test_a_step_that_the_script_leaves_out_leaves_nothing_behind(value: float) -> None:
    """After clipping and no step, the next gradients are true ones again; an overflow that was seen lowers the factor."""
    weight = nn.Parameter(torch.ones(1))
    acc, (optimizer,) = _scaled(weight)
    acc.backward((weight * value).sum())
    assert acc.clip_grad_norm_([weight], 9.0).item() == value
    optimizer.zero_grad()
    acc.backward((weight / 4).sum())
    assert acc.scaler is not None
    assert acc.scaler.get_scale() == (2.0 if value == float("inf") else 8.0)
    assert acc.clip_grad_norm_([weight], 9.0).item() == 0.25
    optimizer.step()
    assert weight.item() == 0.75


def test_gradients_on_top_of_unscaled_ones_are_refused() -> None:
    """A loss whose gradients come on top of those that clipping has unscaled is said, not stepped by."""
    weight = nn.Parameter(torch.ones(1))
    acc, _ = _scaled(weight)
    acc.backward(weight.sum())
    acc.clip_grad_norm_([weight], 9.0)
    acc.backward(weight.sum())
    with pytest.raises(SettingError, match="zero_grad"):
        acc.clip_grad_norm_([weight], 9.0)


def test_an_optimizer_without_gradients_steps_under_a_scaler_too() -> None:
    """Its step changes nothing, as it does without a scaler, and keeps nobody else from stepping."""
    weights = [nn.Parameter(torch.ones(1)) for _ in range(2)]
    acc, optimizers = _scaled(*weights)
    for _ in range(2):
        acc.backward(weights[0].sum() / 4)
        acc.clip_grad_norm_(weights, 9.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert [weight.item() for weight in weights] == [0.5, 1.0]
    assert not acc.optimizer_step_was_skipped


@pytest.mark.parametrize("order", ["compiled before", "compiled after"])
def test_a_compiled_model_computes_in_the_type_too(order: str) -> None:
    """Bit for bit what it computes without torch.compile, whose graphs must not leave autocast to the time of compiling."""
    acc = Accelerator(mixed_precision="bf16", cpu=True)
    inner, inputs = nn.Sequential(nn.Linear(16, 16), Plain()), torch.randn(8, 16)
    twin, plain = copy.deepcopy(inner), copy.deepcopy(inner)
    eager = acc.prepare(inner)(inputs)
    if order == "compiled before":
        model = acc.prepare(torch.compile(twin, backend="aot_eager"))
    else:
        model = torch.compile(acc.prepare(twin), backend="aot_eager")

    assert torch.equal(eager, model(inputs))
    assert not torch.equal(eager, plain(inputs)), "the smaller type is to be seen"


class Plain(nn.Module):
    """A module of the script's own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One layer."""
        return self.layer(x)


class Interrupted(nn.Linear):
    """Its forward is ended by Ctrl-C, once."""

    stops = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The linear map."""
        if self.stops:
            self.stops = False
            raise KeyboardInterrupt
        return super().forward(x)


@pytest.mark.parametrize("then", ["save", "forward", "outer"])
def test_ctrl_c_in_a_forward_does_not_leave_autocast_on(tmp_path: Path, then: str) -> None:
    """No hook is called then: the next thing that is done with the Accelerator ends the block; one around the call stays."""
    acc = Accelerator(mixed_precision="bf16", cpu=True)
    inner = Interrupted(4, 4)
    model = acc.prepare(nn.Sequential(nn.Linear(4, 4), acc.prepare(inner)))
    outside = torch.autocast("cpu", torch.bfloat16) if then == "outer" else nullcontext()
    with outside:
        with pytest.raises(KeyboardInterrupt):
            model(torch.ones(1, 4))
        if then == "forward":
            assert model(torch.ones(1, 4)).dtype == torch.float32
        else:
            acc.save_state(tmp_path / "a")
        assert torch.is_autocast_enabled("cpu") is (then == "outer")
    assert not torch.is_autocast_enabled("cpu")
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
