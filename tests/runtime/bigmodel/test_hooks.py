"""Hooks around forwards: order, signatures, copies, and the hook that brings weights from a mapping."""

import copy
import inspect
import pickle
import threading
from typing import Any

import pytest
import torch
from torch import nn

from accelkit import cpu_offload, cpu_offload_with_hook
from accelkit.hooks import (
    AlignDevicesHook,
    ModelHook,
    SequentialHook,
    add_hook_to_module,
    attach_align_device_hook,
    attach_align_device_hook_on_blocks,
    attach_execution_device_hook,
    attach_layerwise_casting_hooks,
    remove_hook_from_module,
    remove_hook_from_submodules,
)
from accelkit.runtime.bigmodel.prefetch import Order
from accelkit.runtime.bigmodel.transfer import Transfer
from accelkit.utils import (
    align_module_device,
    get_state_dict_from_offload,
    has_offloaded_params,
    iterate_state_dict,
)
from tests.support.bigmodels import ids, make, scores


class Add(ModelHook):
    """Adds to the input and multiplies the output."""

    def __init__(self, before: float = 0, after: float = 1) -> None:
        self.before, self.after = before, after

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Add."""
        return (args[0] + self.before, *args[1:]), kwargs

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        """Multiply."""
        return output * self.after


def test_a_hook_replaces_the_one_before_unless_appended() -> None:
    """Order of appended hooks is that in which they were added; removal restores everything."""
    module, x = nn.Linear(2, 2), torch.ones(1, 2)
    plain = module(x)
    names = set(module.__dict__)
    add_hook_to_module(module, Add(before=5))
    add_hook_to_module(module, Add(after=2))
    assert torch.equal(module(x), plain * 2)
    add_hook_to_module(module, Add(before=1, after=3), append=True)
    assert isinstance(module._hf_hook, SequentialHook)
    assert torch.equal(module(x), module._old_forward(x + 1) * 6)
    assert torch.equal(module.forward(x), module(x))
    remove_hook_from_module(module)
    assert set(module.__dict__) == names
    assert torch.equal(module(x), plain)


def test_names_and_signatures_stay_and_own_forwards_come_back() -> None:
    """Also when forward was set on the module itself, and under torch.no_grad hooks."""
    module = nn.Linear(2, 2)
    own = lambda x, *, flag=False: x if flag else -x  # noqa: E731
    module.forward = own
    hook = Add()
    hook.no_grad = True
    add_hook_to_module(module, hook)

    assert list(inspect.signature(module.forward).parameters) == ["x", "flag"]
    assert module(torch.ones(1), flag=True).item() == 1
    remove_hook_from_module(module)
    assert module.forward is own


def test_copies_run_their_own_forward() -> None:
    """By deepcopy and by pickle; zeroing the copy leaves the original as it is."""
    module = add_hook_to_module(nn.Linear(2, 2), Add(after=2))
    expected = module(torch.ones(1, 2))
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        with torch.no_grad():
            copied.weight.zero_()
            copied.bias.fill_(1)
        assert torch.equal(copied(torch.ones(1, 2)), torch.full((1, 2), 2.0))
        assert torch.equal(module(torch.ones(1, 2)), expected)


@pytest.mark.parametrize("buffers", [False, True])
@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_weights_from_a_mapping_are_on_meta_between_forwards(kind: str, buffers: bool) -> None:
    """Brought for each module's forward and taken away after it; threads share them; removal gives them back."""
    model, expected = make(kind), scores(make(kind))
    state = {name: value.clone() for name, value in make(kind).state_dict().items()}
    attach_align_device_hook(model, "cpu", offload=True, weights_map=state, offload_buffers=buffers)

    assert all(parameter.is_meta for parameter in model.parameters())
    wrong: list[bool] = []
    threads = [
        threading.Thread(target=lambda: wrong.extend(not torch.equal(scores(model), expected) for _ in range(10)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [False] * 30
    assert all(parameter.is_meta for parameter in model.parameters())
    found = dict(iterate_state_dict(model))
    assert all(torch.equal(value, found[name]) for name, value in state.items())
    remove_hook_from_submodules(model)
    assert torch.equal(scores(model), expected)
    assert not any(tensor.is_meta for tensor in model.state_dict().values())


def test_a_failed_forward_takes_the_weights_away() -> None:
    """And the next one is right."""
    layer = nn.Linear(2, 2)
    state = {name: value.clone() for name, value in layer.state_dict().items()}
    add_hook_to_module(layer, AlignDevicesHook("cpu", offload=True, weights_map=state))
    with pytest.raises(RuntimeError):
        layer(torch.ones(1, 5))

    assert layer.weight.is_meta
    assert torch.equal(layer(torch.ones(1, 2)), nn.functional.linear(torch.ones(1, 2), state["weight"], state["bias"]))


def test_blocks_have_their_own_devices_and_offloading() -> None:
    """By the innermost block; the rest is where the whole is."""
    model = make("decoder")
    state = {name: value.clone() for name, value in model.state_dict().items()}
    attach_align_device_hook_on_blocks(
        model, {"": "cpu", "layers.1": "cpu"}, {"": False, "layers.1": True}, weights_map=state
    )

    assert {name for name, p in model.named_parameters() if p.is_meta} == {
        name for name, _ in model.named_parameters() if name.startswith("layers.1.")
    }
    assert torch.equal(scores(model), scores(make("decoder")))


def test_execution_hooks_and_preloaded_classes() -> None:
    """Hooks on what holds tensors; a class that is brought whole has one for all below it."""
    model = make("decoder")
    attach_execution_device_hook(model, "cpu", preload_module_classes=["Layer"])

    assert torch.equal(scores(model), scores(make("decoder")))
    assert hasattr(model.layers[0], "_hf_hook")
    assert not hasattr(model.layers[0].up, "_hf_hook")


def test_changes_that_forward_makes_to_offloaded_buffers_are_kept() -> None:
    """Running statistics are written back to where they rest."""
    norm, plain = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    attach_align_device_hook(norm, "meta", offload=True, offload_buffers=True)
    remove_hook_from_module(norm)
    hook = AlignDevicesHook("cpu", offload=True, offload_buffers=True)
    add_hook_to_module(norm, hook)
    for value in (torch.randn(4, 3), torch.randn(4, 3)):
        norm(value)
        plain(value)

    assert torch.equal(norm.running_mean, plain.running_mean)
    assert norm.num_batches_tracked == 2


def test_a_module_s_own_parameters_for_a_block() -> None:
    """Offloaded ones are brought, plain ones moved, those below stay."""
    model = make("decoder")
    state = {name: value.clone() for name, value in model.layers[0].state_dict().items()}
    attach_align_device_hook(model.layers[0], "cpu", offload=True, weights_map=state)

    assert has_offloaded_params(model.layers[0].up)
    assert not has_offloaded_params(model.layers[1].up)
    with align_module_device(model.layers[0].up):
        assert torch.equal(model.layers[0].up.weight, state["up.weight"])
        assert model.layers[0].down.weight.is_meta
    assert model.layers[0].up.weight.is_meta
    kept = model.layers[1].up.weight.clone()
    with align_module_device(model.layers[1].up, "cpu"):
        assert torch.equal(model.layers[1].up.weight, kept)
    filled = get_state_dict_from_offload(model.layers[0].up, "up.weight", {"up.weight": None, "up.bias": None})
    assert torch.equal(filled["up.weight"], state["up.weight"])


def test_layers_are_stored_small_and_computed_large() -> None:
    """bfloat16 between forwards, float32 in them; modules found by pattern or class are left alone."""
    model = make("decoder")
    reference = make("decoder")
    for name, module in reference.named_modules():
        if isinstance(module, nn.Linear) and not name.endswith("down") and name != "head":
            module.to(torch.bfloat16).to(torch.float32)
    attach_layerwise_casting_hooks(model, torch.bfloat16, torch.float32, skip_modules_pattern=("down$", "^head"))

    assert model.layers[0].up.weight.dtype == torch.bfloat16
    assert model.layers[0].down.weight.dtype == torch.float32
    assert model.layers[0].norm.weight.dtype == torch.float32
    assert torch.equal(scores(model), scores(reference))
    assert model.layers[0].up.weight.dtype == torch.bfloat16
    other = make("decoder")
    attach_layerwise_casting_hooks(other, torch.bfloat16, torch.float32, "layers", skip_modules_classes=nn.Embedding)
    assert other.layers[0].up.weight.dtype == torch.float32


def test_models_of_a_chain_take_turns() -> None:
    """The next one sends the one before it away; hooks offload and go."""
    first, hook_1 = cpu_offload_with_hook(nn.Linear(2, 2), "cpu")
    second, hook_2 = cpu_offload_with_hook(nn.Linear(2, 2), "cpu", prev_module_hook=hook_1)
    sent: list[str] = []
    hook_1.offload = lambda: sent.append("first")  # type: ignore[method-assign]
    second(first(torch.ones(1, 2)))

    assert sent == ["first"]
    hook_2.offload()
    hook_2.remove()
    assert not hasattr(second, "_hf_hook")


def test_the_order_is_learned_and_follows_changes() -> None:
    """At first that of the model; then what was seen, for each thread by itself; never endless, never the key itself."""
    order = Order(["a", "b", "c", "d"])
    assert list(order.after("b")) == ["c", "d", "a"]
    for key in ("a", "c", "b", "d"):
        order.seen(key)
    thread = threading.Thread(target=lambda: order.seen("d"))
    thread.start()
    thread.join()
    assert list(order.after("a")) == ["c", "b", "d"]
    order.seen("d")
    order.seen("b")
    assert list(order.after("a"))[:2] == ["c", "b"]


def test_weights_that_travel_ahead_are_never_stale() -> None:
    """What is written to or replaced after it was sent is sent again; another order and other threads are right."""
    transfer = Transfer(dict.fromkeys(["a", "b", "c"], torch.device("cpu")))
    homes = {key: [torch.full((4,), float(index)), torch.ones(())] for index, key in enumerate("abc")}
    for key in "abc":
        transfer.expect(key, homes[key])
    for key in "abcacb":
        transfer.enter(key)
        assert torch.equal(transfer.take(key, homes[key])[0], homes[key][0])
        for other in homes.values():
            other[0] += 1
        homes["b"][0] = homes["b"][0].clone()
        transfer.leave(key)
    transfer.finish()
    assert torch.equal(pickle.loads(pickle.dumps(transfer)).take("a", homes["a"])[0], homes["a"][0])
    assert scores(make("decoder")).shape == (*ids().shape, 40)


class Failing(ModelHook):
    """Raises before or after forward; counts how often it is entered, and left one way or the other."""

    def __init__(self, at: str = "") -> None:
        self.at, self.open = at, 0

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Enter, or raise."""
        if self.at == "before":
            raise ValueError(self.at)
        self.open += 1
        return args, kwargs

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        """Leave, and perhaps raise."""
        self.open -= 1
        if self.at == "after":
            raise ValueError(self.at)
        return output

    def after_failure(self, module: nn.Module) -> None:
        """Leave."""
        self.open -= 1


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("at", ["before", "after", "within"])
def test_what_was_entered_is_left_once(count: int, at: str) -> None:
    """Whichever of several hooks raises, before or after forward, or forward itself: every hook that was entered is left."""
    for number in range(count):
        hooks = [Failing(at if place == number else "") for place in range(count)]
        module = nn.Linear(2, 2)
        for hook in hooks:
            add_hook_to_module(module, hook, append=True)
        with pytest.raises((ValueError, RuntimeError)):
            module(torch.ones(1, 3 if at == "within" else 2))
        assert [hook.open for hook in hooks] == [0] * count


@pytest.mark.parametrize("dispatched", [False, True])
def test_weights_are_brought_in_inference_mode_too(dispatched: bool) -> None:
    """As tensors of any mode: one of inference mode would not tell what forward wrote to it. Meta stands for the device."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    if dispatched:
        cpu_offload(model, execution_device="meta", offload_buffers=True)
    else:
        attach_align_device_hook(model, "meta", offload=True, offload_buffers=True)
    seen: list[bool] = []
    inner = model[1].register_forward_pre_hook(lambda module, _: seen.append(module.running_mean.is_inference()))
    with torch.inference_mode():
        model(torch.ones(2, 4, device="meta"))
    inner.remove()
    assert not any(seen)
    assert model(torch.ones(2, 4, device="meta")).shape == (2, 4)
    assert not any(tensor.is_meta or tensor.is_inference() for tensor in model.state_dict().values())


def test_values_that_were_made_in_inference_mode_are_brought() -> None:
    """A mapping may hold them, and the model be built of them."""
    with torch.inference_mode():
        model, x = nn.Sequential(nn.Linear(4, 4)), torch.ones(1, 4)
        expected = model(x)
        values = {name: value.clone() for name, value in model.state_dict().items()}
        attach_align_device_hook(model, "cpu", offload=True, weights_map=values)
        assert torch.equal(model(x), expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_models_whose_weights_are_brought_can_be_compiled() -> None:
    """The compiler is kept out of the bringing; what it compiles computes the same, and the weights go back."""
    model = make("decoder")
    expected = scores(model)
    values = {name: value.clone() for name, value in model.state_dict().items()}
    attach_align_device_hook(model, "cpu", offload=True, weights_map=values)
    compiled = torch.compile(model, backend="aot_eager")
    for _ in range(2):
        assert torch.equal(scores(compiled), expected)
    assert all(parameter.is_meta for parameter in model.parameters())

    moved = cpu_offload(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), execution_device="meta")
    with torch.no_grad():
        assert torch.compile(moved, backend="aot_eager")(torch.ones(2, 4, device="meta")).shape == (2, 4)
    assert not any(parameter.is_meta for parameter in moved.parameters())
