"""Gradients and dispatched models: what a backward gives is right, or it is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributions import Independent, Normal
from torch.utils.checkpoint import checkpoint

from accelkit import cpu_offload, dispatch_model


class Net(nn.Module):
    """Two layers, the first of which may be computed anew in the backward."""

    def __init__(self, recomputes: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.recomputes = nn.Linear(4, 4), nn.Linear(4, 4), recomputes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, 4] -> [n, 4]."""
        x = checkpoint(self.first, x, use_reentrant=False) if self.recomputes else self.first(x)
        return self.second(torch.tanh(x))


def placed(model: nn.Module, folder: Path) -> nn.Module:
    """One half on disk, one in memory."""
    return dispatch_model(model, {"first": "disk", "second": "cpu"}, offload_dir=folder)


def gradient(model: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor | None:
    """What an input gets that also goes past the model."""
    x = torch.ones(1, 4, requires_grad=True)
    (model(x) + x).sum().backward()
    return x.grad


@pytest.mark.parametrize("recomputes", [False, True])
def test_inputs_get_their_gradients_through_frozen_weights(tmp_path: Path, recomputes: bool) -> None:
    """As through the model in memory: also with layers computed anew in the backward, compiled, and for an input that is no argument."""
    expected = gradient(Net().requires_grad_(False))
    model = placed(Net(recomputes).requires_grad_(False), tmp_path)

    assert torch.equal(gradient(model), expected)
    assert torch.equal(gradient(torch.compile(model, backend="eager", fullgraph=True)), expected)
    assert not model(torch.ones(1, 4)).requires_grad
    prompt = torch.ones(1, 4, requires_grad=True)
    handle = model.first.register_forward_pre_hook(lambda _, args: (args[0] * prompt,))
    model(torch.ones(1, 4)).sum().backward()
    handle.remove()
    assert torch.equal(prompt.grad + 1, expected)


def test_frozen_weights_that_are_brought_serve_the_backward_too() -> None:
    """With meta as a device that computes shapes: the gradient comes, and the weights are at home."""
    model = cpu_offload(Net().requires_grad_(False), execution_device="meta")
    x = torch.ones(1, 4, device="meta", requires_grad=True)
    model(x).sum().backward()

    assert x.grad is not None
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}


class Head(Net):
    """Gives what `kind` makes of its output."""

    def __init__(self, kind: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor) -> object:
        """[n, 4] -> whatever."""
        return self.kind(super().forward(x))


def test_no_gradient_is_lost_in_silence(tmp_path: Path) -> None:
    """Complex outputs, and those within distributions, refuse a backward as others do; values and shapes are as before."""
    x = torch.ones(1, 4)
    outputs: dict[str, Callable[[torch.Tensor], object]] = {
        "complex": lambda y: torch.complex(y, y),
        "distribution": lambda y: Normal(y, 1.0),
        "nested": lambda y: Independent(Normal(y, 1.0), 1),
    }
    for name, kind in outputs.items():
        made = placed(Head(kind), tmp_path / name)(x)
        tensor = made if isinstance(made, torch.Tensor) else made.mean
        with pytest.raises(RuntimeError, match="backward through Head, which is partly offloaded"):
            tensor.abs().sum().backward()
        if not isinstance(made, torch.Tensor):
            assert torch.equal(made.log_prob(x), kind(Net()(x)).log_prob(x))
