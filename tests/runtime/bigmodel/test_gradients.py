"""Gradients and dispatched models: what a backward gives is right, or it is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributions import Independent, Normal
from torch.func import functional_call, grad, jvp, vmap
from torch.utils.checkpoint import checkpoint

from accelkit import UnsupportedError, cpu_offload, dispatch_model


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


X = torch.ones(3, 4)
ONE = {name: value.detach() for name, value in Net().named_parameters()}
TWO = {name: torch.stack([value, value + 1]) for name, value in ONE.items()}
TRANSFORMED: dict[str, Callable[[nn.Module], torch.Tensor]] = {
    "vmap over weights": lambda model: vmap(lambda weights: functional_call(model, weights, (X,)))(TWO),
    "vmap over inputs": lambda model: vmap(model)(X),
    "jvp of inputs": lambda model: jvp(lambda x: model(x) + x, (X,), (X,))[1],
    "jvp of weights": lambda model: jvp(lambda weights: functional_call(model, weights, (X,)), (ONE,), (ONE,))[1],
    "grad of inputs": lambda model: grad(lambda x: (model(x) + x).sum())(X),
    "vmap of grad": lambda model: vmap(grad(lambda x: (model(x) + x).sum()))(X),
    "grad of weights": lambda model: grad(lambda weights: functional_call(model, weights, (X,)).sum())(ONE)[
        "first.bias"
    ],
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is")  # torch's own, in jvp
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("records", [False, True])
@pytest.mark.parametrize("name", TRANSFORMED)
def test_transformed_functions_are_right_or_refused(tmp_path: Path, name: str, records: bool, frozen: bool) -> None:
    """Of a model that has not run yet, and again. What needs gradients of weights, or through weights that want some, is refused."""
    transformed, model = TRANSFORMED[name], placed(Net().requires_grad_(not frozen), tmp_path)
    with torch.set_grad_enabled(records):
        expected = transformed(Net().requires_grad_(not frozen))
        for _ in range(2):
            if "grad" not in name or (frozen and name != "grad of weights"):
                assert torch.allclose(transformed(model), expected)
            else:
                with pytest.raises(RuntimeError, match="backward through Net, which is partly offloaded"):
                    transformed(model)
    with torch.no_grad():
        assert torch.equal(model(X), Net()(X))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is")  # torch's own, in jvp
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's own, in its compiler
@pytest.mark.parametrize("name", TRANSFORMED)
def test_compiled_transformed_functions_are_right_or_refused(tmp_path: Path, name: str) -> None:
    """No gradient and no tangent is taken for zero; weights that are given in the place of the model's own get theirs."""
    transformed = TRANSFORMED[name]
    model, compiled = placed(Net(), tmp_path), torch.compile(transformed, backend="eager")
    for _ in range(2):
        if name in ("grad of inputs", "vmap of grad"):
            with pytest.raises(RuntimeError, match="backward through Net, which is partly offloaded"):
                compiled(model)
        else:
            assert torch.allclose(compiled(model), transformed(Net()))


def test_transformed_weights_are_brought_to_where_a_module_runs() -> None:
    """With meta as a device that computes shapes."""
    model = cpu_offload(Net(), execution_device="meta")
    with torch.no_grad():
        made = vmap(lambda weights: functional_call(model, weights, (X.to("meta"),)))(TWO)

    assert made.shape == (2, 3, 4)
    assert made.device.type == "meta"
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}


class Told(Net):
    """Its output in a structure."""

    def forward(self, x: torch.Tensor) -> dict[str, list[torch.Tensor]]:  # type: ignore[override]
        """[n, 4] -> [n, 4]."""
        return {"hidden": [super().forward(x)]}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Error detected in")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_backward_through_a_compiled_model_is_refused_too(tmp_path: Path, backend: str) -> None:
    """In one graph, whatever the output is in; a head that is trained on it would get gradients alone. Inference is as before."""
    head, model = nn.Linear(4, 1), Told()
    expected = model(torch.ones(1, 4))["hidden"][0]
    placed(model, tmp_path)
    compiled = torch.compile(lambda x: head(model(x)["hidden"][0]), backend=backend, fullgraph=True)

    loss = compiled(torch.ones(1, 4)).sum()
    assert torch.equal(loss, head(expected).sum())
    with pytest.raises(UnsupportedError, match="backward through Told, which is partly offloaded"):
        loss.backward()
    with torch.no_grad():
        assert not compiled(torch.ones(1, 4)).requires_grad
