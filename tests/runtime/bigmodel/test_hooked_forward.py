"""The forward that a hook is in: what others put around it, read of it, and find of it on a wrapper."""

import copy
import functools
import inspect
import pickle
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from accelkit import dispatch_model
from accelkit.hooks import ModelHook, add_hook_to_module, remove_hook_from_module
from accelkit.utils import has_offloaded_params


def net() -> nn.Sequential:
    """The same two layers each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


class Counting(ModelHook):
    """Counts forwards."""

    count = 0

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Count."""
        self.count += 1
        return args, kwargs


def wrapped(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The forward, doubled."""

    @functools.wraps(forward)
    def double(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs) * 2

    return double


def test_a_forward_that_was_wrapped_after_the_hook_stays_and_works(tmp_path: Path) -> None:
    """The wrapper is kept and calls the plain forward; a hook that is added after that runs once."""
    model, x = net(), torch.ones(1, 4)
    plain = model(x)
    dispatch_model(model, {"0": "disk", "1": "cpu"}, offload_dir=tmp_path)
    model.forward = wrapped(model.forward)
    model[0].forward = around = lambda y, old=model[0].forward: old(y)
    with torch.no_grad():
        assert torch.equal(model(x), plain * 2)
    remove_hook_from_module(model, recurse=True)

    assert torch.equal(model(x), plain * 2)
    assert model[0].forward is around
    hook = Counting()
    add_hook_to_module(model, hook)
    assert torch.equal(model(x), plain * 2)
    assert hook.count == 1
    remove_hook_from_module(model)
    assert torch.equal(model(x), plain * 2)


@pytest.mark.parametrize("hooked_before", [False, True])
def test_hooks_that_a_library_of_this_family_put_on_are_taken_off(hooked_before: bool) -> None:
    """As transformers does with the hook of an embedding that it makes anew: the module is plain afterwards."""
    import accelerate.hooks as family

    layer, x, hook = nn.Linear(4, 4), torch.ones(1, 4), Counting()
    if hooked_before:
        add_hook_to_module(layer, Counting())
    names = set(nn.Linear(4, 4).__dict__)
    family.add_hook_to_module(layer, hook)
    expected = layer(x)
    remove_hook_from_module(layer)

    assert torch.equal(layer(x), expected)
    assert hook.count == 1
    assert set(layer.__dict__) == names


class Wrapper(nn.Module):
    """Finds on what it wraps whatever it does not have itself."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base, self.extra = base, nn.Linear(4, 4)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "base":
                raise
            return getattr(self.base, name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, 4] -> [n, 4]."""
        found: torch.Tensor = self.base(x) + self.extra(x)
        return found


def test_a_wrapper_does_not_have_the_hooks_of_what_it_wraps(tmp_path: Path) -> None:
    """Hooks can be taken off below it, added to it, appended to it; it can be dispatched."""
    x = torch.ones(1, 4)
    wrapper = Wrapper(dispatch_model(net(), {"0": "disk", "1": "cpu"}, offload_dir=tmp_path))
    with torch.no_grad():
        expected = wrapper(x)
        remove_hook_from_module(wrapper, recurse=True)
        assert not hasattr(wrapper, "_hf_hook")
        inner, hook = Counting(), Counting()
        add_hook_to_module(wrapper.base, inner)
        add_hook_to_module(wrapper, hook, append=True)
        assert torch.equal(wrapper(x), expected)
        assert (inner.count, hook.count) == (1, 1)
        dispatch_model(wrapper, {"base": "disk", "extra": "cpu"}, offload_dir=tmp_path / "again")
        assert torch.equal(wrapper(x), expected)
        assert not has_offloaded_params(wrapper)
    remove_hook_from_module(wrapper, recurse=True)
    assert wrapper.forward.__func__ is Wrapper.forward


class Documented(nn.Module):
    """Has a forward with everything that can be said of one, and an argument that hooks have too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, module: "Counting | None" = None, hook: float = 1.0) -> torch.Tensor:
        """What it does."""
        found: torch.Tensor = self.layer(x) * hook
        return found if module is None else -found


def test_a_hooked_forward_says_what_the_forward_does(tmp_path: Path) -> None:
    """Annotations (also such as are texts), name, module and text; of a copy and of a forward set on the module too."""
    plain, model = Documented(), Documented()
    dispatch_model(model, {"": "disk"}, offload_dir=tmp_path)
    for forward in (model.forward, copy.deepcopy(model).forward, pickle.loads(pickle.dumps(model)).forward):
        assert typing.get_type_hints(forward) == typing.get_type_hints(plain.forward)
        assert inspect.signature(forward) == inspect.signature(plain.forward)
        for name in functools.WRAPPER_ASSIGNMENTS:
            assert getattr(forward, name, None) == getattr(plain.forward, name, None)
    plain.forward = wrapped(lambda x: x)
    add_hook_to_module(plain, ModelHook())
    assert plain.forward.__qualname__.endswith("<lambda>")


def test_forward_may_have_arguments_named_as_those_of_hooks(tmp_path: Path) -> None:
    """Given by keyword, through every hook of this package, alone and in a row."""
    model, x = Documented(), torch.ones(1, 4)
    expected = -model(x) * 2
    dispatch_model(model, {"": "disk"}, offload_dir=tmp_path)
    add_hook_to_module(model, ModelHook(), append=True)

    with torch.no_grad():
        assert torch.equal(model(x, module=ModelHook(), hook=2.0), expected)


def renamed(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A forward of another name that hides the one it calls."""
    return lambda *args: forward(*args) * 2


class Held(nn.Module):
    """Parameters in lists of torch's own, which have no forward, and a forward that a decorator made under another name."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(4, 4) for _ in range(2))
        self.more = nn.ParameterDict({"bias": torch.randn(4)})

    @renamed
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, 4] -> [n, 4]."""
        return x @ self.weights[0] + self.more["bias"]


def test_models_can_be_pickled_whatever_their_forwards_are_called(tmp_path: Path) -> None:
    """The copy is a model of its own, and plain when its hooks are removed."""
    model, x = Held(), torch.ones(1, 4)
    expected = model(x)
    dispatch_model(model, {"": "disk"}, offload_dir=tmp_path)
    made = pickle.loads(pickle.dumps(model))
    with torch.no_grad():
        assert torch.equal(made(x), expected)
        assert torch.equal(made._old_forward(x), expected)
        made.more["bias"].zero_()
        assert torch.equal(model(x), expected)
    remove_hook_from_module(made, recurse=True)
    assert "forward" not in made.__dict__ | made.weights.__dict__
