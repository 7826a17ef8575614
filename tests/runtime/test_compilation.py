"""Compiling models: whole and by regions, before and after prepare, in every precision; and the way back."""

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from accelkit import Accelerator, AcceleratorState, SettingError, TorchDynamoPlugin, UnsupportedError
from accelkit.utils import (
    DynamoBackend,
    compile_regions,
    extract_model_from_parallel,
    has_compiled_regions,
    has_repeated_blocks,
    is_compiled_module,
    is_repeated_blocks,
)

# torch's own tracer looks at gradients of tensors that have none.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")


class Block(nn.Module):
    """What a model repeats."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Residual."""
        return x + self.norm(self.linear(x)).relu()


class Net(nn.Module):
    """A model with repeated blocks, something before and something after them, and a tied weight."""

    def __init__(self, depth: int = 5) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.body = nn.Module()
        self.body.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.last = nn.Linear(4, 4)
        self.last.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One after the other."""
        x = self.first(x)
        for block in self.body.blocks:
            x = block(x)
        return self.last(x)


class Graphs:
    """A backend that counts the graphs it compiles."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        """Run the graph as it is."""
        self.count += 1
        forward: Callable[..., Any] = graph.forward
        return forward


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No state and nothing compiled of another test."""
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture
def x() -> torch.Tensor:
    """A batch that requires gradients, so that all blocks get inputs of one kind."""
    return torch.randn(3, 4, requires_grad=True)


def test_blocks_are_compiled_once(x: torch.Tensor) -> None:
    """However many blocks there are, one graph serves them all; results and gradients are those of the plain model."""
    for depth in (2, 7):
        torch._dynamo.reset()
        graphs, model = Graphs(), Net(depth)
        compiled = compile_regions(model, backend=graphs, fullgraph=True)
        expected = model(x)
        assert torch.equal(compiled(x), expected)
        assert graphs.count == 3, "the block, and the two linear layers beside"
        compiled(x).sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())


def test_regions_share_everything_and_rename_nothing(x: torch.Tensor) -> None:
    """Names, parameters, buffers, classes and ties are those of the model, which stays as it is and is found again."""
    model = Net()
    compiled = compile_regions(model, backend="eager")

    assert list(compiled.state_dict()) == list(model.state_dict())
    assert [id(p) for p in compiled.parameters()] == [id(p) for p in model.parameters()]
    assert [type(m) for m in compiled.modules()] == [type(m) for m in model.modules()]
    assert compiled.last.weight is compiled.first.weight
    assert compiled._orig_mod is model
    assert (has_compiled_regions(compiled), is_compiled_module(compiled)) == (True, False)
    assert (has_compiled_regions(model), is_compiled_module(model)) == (False, False)
    compiled.eval()
    compiled.load_state_dict({name: torch.zeros_like(value) for name, value in compiled.state_dict().items()})
    assert model(x).abs().sum() == 0
    twin = copy.deepcopy(compiled)
    assert torch.equal(twin(x), compiled(x))
    assert torch.equal(pickle.loads(pickle.dumps(compiled))(x), compiled(x))


def test_blocks_that_are_one_module_stay_one() -> None:
    """A block that stands in a list several times is one module in the compiled model, too."""
    block = Block()
    compiled = compile_regions(nn.Sequential(nn.ModuleList([block, block]), block), backend="eager")

    assert compiled[0][0] is compiled[0][1]
    assert compiled[1] is compiled[0][0]


def test_a_model_without_repeated_blocks_is_compiled_whole() -> None:
    """One block alone, blocks of several classes, and plain lists are no repetition."""
    for model in (nn.Linear(2, 2), nn.ModuleList([Block()]), nn.ModuleList([Block(), nn.Linear(2, 2)])):
        assert not has_repeated_blocks(model)
        assert is_compiled_module(compile_regions(model, backend="eager"))
    assert is_repeated_blocks(nn.ModuleList([Block(), Block()]))
    assert has_repeated_blocks(Net())


def test_a_forward_that_was_replaced(x: torch.Tensor) -> None:
    """A method of the module's own class is bound to the copy; any other function would run the original: refused."""
    model = nn.ModuleList([Block(), Block()])
    expected = model[0](x)
    model[0].forward = model[0].forward  # as libraries do that wrap it
    compiled = compile_regions(model, backend="eager")
    assert compiled[0].forward.__self__ is compiled[0]
    assert torch.equal(compiled[0](x), expected)
    model[0].forward = lambda x: x
    with pytest.raises(UnsupportedError, match="the forward of a Block was replaced"):
        compile_regions(model, backend="eager")


@pytest.mark.parametrize("regional", [False, True])
@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_prepare_compiles(precision: str, regional: bool, x: torch.Tensor) -> None:
    """A prepared model computes what the plain one does, in one graph per region without a break, and unwraps to what was given."""
    graphs, model = Graphs(), Net()
    plain = Accelerator(mixed_precision=precision).prepare_model(copy.deepcopy(model))
    plugin = TorchDynamoPlugin(backend=graphs, fullgraph=True, use_regional_compilation=regional)
    acc = Accelerator(mixed_precision=precision, dynamo_plugin=plugin)
    prepared = acc.prepare(model)

    assert torch.equal(prepared(x), plain(x))
    assert prepared(x).dtype == torch.float32
    assert not torch.is_autocast_enabled("cpu")
    assert graphs.count == (3 if regional else 1)
    assert (has_compiled_regions if regional else is_compiled_module)(prepared)
    assert acc.unwrap_model(prepared) is model
    assert acc.unwrap_model(prepared, keep_torch_compile=False) is model
    assert acc.prepare(prepared) is prepared
    assert acc.prepare(model) is prepared
    assert list(acc.get_state_dict(prepared)) == list(Net().state_dict())


@pytest.mark.parametrize("precision", ["no", "bf16"])
@pytest.mark.parametrize("way", [torch.compile, compile_regions])
@pytest.mark.parametrize("first", ["compile", "prepare"])
def test_compiling_before_and_after_prepare(precision: str, way: Any, first: str, x: torch.Tensor) -> None:
    """In either order the result is that of the plain model; unwrapping gives what was given to prepare, or the plain model."""
    model = Net()
    plain = Accelerator(mixed_precision=precision).prepare_model(copy.deepcopy(model))
    acc = Accelerator(mixed_precision=precision)
    if first == "compile":
        given = way(model, backend="eager")
        ready = acc.prepare(given)
        assert acc.unwrap_model(ready) is given
    else:
        ready = way(acc.prepare(model), backend="eager")
    optimizer = torch.optim.SGD(ready.parameters(), 0.1)
    acc.backward(ready(x).sum())
    acc.prepare(optimizer).step()

    before = plain(x)
    before.sum().backward()
    torch.optim.SGD(plain.parameters(), 0.1).step()
    assert torch.equal(ready(x), plain(x))
    assert not torch.equal(plain(x), before)
    assert acc.unwrap_model(ready, keep_torch_compile=False) is model
    assert extract_model_from_parallel(ready, keep_torch_compile=False) is model
    assert list(acc.get_state_dict(ready)) == list(model.state_dict())


def test_what_is_compiled_is_not_compiled_again() -> None:
    """A script that compiles its model itself keeps its own settings."""
    acc = Accelerator(dynamo_backend="eager")
    for compiled in (torch.compile(Net(), backend="aot_eager"), compile_regions(Net(), backend="aot_eager")):
        assert acc.prepare(compiled) is compiled


def test_settings() -> None:
    """Names in any case, members and functions; both ways at once, and what torch cannot combine, are refused."""
    assert TorchDynamoPlugin().to_kwargs() == {"backend": "no"}
    assert not TorchDynamoPlugin().is_on
    assert not Accelerator().dynamo_plugin.is_on
    for name in ("inductor", "INDUCTOR", DynamoBackend.INDUCTOR):
        plugin = Accelerator(dynamo_backend=name).dynamo_plugin
        assert plugin.is_on
        assert plugin.to_kwargs() == {"backend": "inductor"}
    graphs = Graphs()
    plugin = TorchDynamoPlugin(backend=graphs, mode="reduce-overhead", dynamic=True, use_regional_compilation=True)
    assert plugin.to_kwargs() == {"backend": graphs, "mode": "reduce-overhead", "dynamic": True}
    assert "EAGER" in DynamoBackend
    with pytest.raises(SettingError, match="dynamo_backend and dynamo_plugin are both given"):
        Accelerator(dynamo_backend="eager", dynamo_plugin=TorchDynamoPlugin())
    with pytest.raises(SettingError, match="mode and options are both given"):
        TorchDynamoPlugin(backend="inductor", mode="max-autotune", options={"a": 1})
