"""A second dispatch in the place of the first; what is left of a dispatch, and of tensors that are registered in two ways."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from accelkit import dispatch_model
from accelkit.hooks import ModelHook, add_hook_to_module, remove_hook_from_module
from accelkit.runtime.bigmodel.hooks import flat


def net() -> nn.Sequential:
    """The same two layers each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


class Counting(ModelHook):
    """Counts forwards."""

    def __init__(self) -> None:
        self.count = 0

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Count."""
        self.count += 1
        return args, kwargs


PLACES: dict[str, dict[str, str]] = {
    "disk": {"": "disk"},
    "halves": {"0": "disk", "1": "cpu"},
    "cpu": {"": "cpu"},
}


@pytest.mark.parametrize("first", PLACES)
@pytest.mark.parametrize("second", PLACES)
def test_the_last_dispatch_counts(tmp_path: Path, first: str, second: str) -> None:
    """As if hooks had been taken off in between: hooks, output, training. Hooks of the user's own stay and run once a forward."""
    model, once, x = net(), net(), torch.ones(1, 4)
    expected = model(x).detach()
    own, outer = Counting(), Counting()
    add_hook_to_module(model[0], own)
    add_hook_to_module(model, outer)
    for places in (first, second, second):
        dispatch_model(model, PLACES[places], offload_dir=tmp_path / places)
    dispatch_model(once, PLACES[first], offload_dir=tmp_path / "once")
    dispatch_model(remove_hook_from_module(once, recurse=True), PLACES[second], offload_dir=tmp_path / "once again")

    assert torch.equal(model(x).detach(), expected)
    assert (own.count, outer.count) == (1, 1)
    for module, alone in zip(model.modules(), once.modules(), strict=True):
        hooks = [flat(each.__dict__["_hf_hook"]) if "_hf_hook" in each.__dict__ else [] for each in (module, alone)]
        assert len([hook for hook in hooks[0] if not isinstance(hook, Counting)]) == len(hooks[1])
    if second == "cpu":
        model(x).sum().backward()
        assert model[0].weight.grad is not None
    else:
        with pytest.raises(RuntimeError, match="partly offloaded"):
            model(x).sum().backward()


def test_a_part_that_was_dispatched_becomes_a_part_of_the_whole(tmp_path: Path) -> None:
    """The model around it is dispatched and can be trained; nothing is left when hooks are taken off."""
    whole, x = nn.Sequential(net(), nn.Linear(4, 4)), torch.ones(1, 4)
    expected = whole(x)
    dispatch_model(whole[0], {"": "disk"}, offload_dir=tmp_path)
    dispatch_model(whole, {"": "cpu"}, force_hooks=True)

    assert torch.equal(whole(x), expected)
    whole(x).sum().backward()
    assert whole[0][0].weight.grad is not None
    remove_hook_from_module(whole, recurse=True)
    assert not any(hasattr(module, "hf_device_map") or "to" in module.__dict__ for module in whole.modules())


def test_a_dispatch_that_is_refused_leaves_the_former_one(tmp_path: Path) -> None:
    """Its hooks are there, and the model runs."""
    model, x = net(), torch.ones(1, 4)
    expected = model(x)
    dispatch_model(model, {"": "cpu"}, force_hooks=True)
    with pytest.raises(ValueError, match="an offload_dir is needed"):
        dispatch_model(model, {"": "disk"})

    assert model.hf_device_map == {"": "cpu"}
    assert torch.equal(model(x), expected)


class Shared(nn.Module):
    """A buffer that is a parameter of a later module, and one that is a parameter without any module to hold it as one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layer = nn.Module(), nn.Linear(2, 2)
        self.first.register_buffer("shared", self.layer.weight)
        self.first.register_buffer("alone", nn.Parameter(torch.ones(2), requires_grad=False))


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("place", ["disk", "cpu"])
def test_a_buffer_that_is_a_parameter_leaves_it_one(tmp_path: Path, place: str, device: str) -> None:
    """The same object under both names, a parameter that wants gradients, as before."""
    model = Shared()
    dispatch_model(model, {"": place}, main_device=device, offload_dir=tmp_path, offload_buffers=True)

    assert type(model.layer.weight) is nn.Parameter
    assert model.layer.weight is model.first.shared
    assert model.layer.weight.requires_grad
    assert type(model.first.alone) is nn.Parameter
    assert len(list(model.parameters())) == 2
