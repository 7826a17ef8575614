"""The complete state of a model, wherever its tensors are: one at a time, or all."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from accelkit.runtime.bigmodel.align import AlignDevicesHook
from accelkit.runtime.bigmodel.hooks import flat, hook_of
from accelkit.runtime.bigmodel.tensors import join, own_slots, replace, walk_modules
from accelkit.runtime.errors import SettingError


def iterate_state_dict(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Name and value of everything in a model's state dict, in its order; a tensor on disk is read when it is used.

    Tied tensors come under each of their names, as views of the same memory. Raises SettingError (a ValueError) for a tensor
    without a value.
    """
    values = _offloaded_values(model)
    for name, value in model.state_dict().items():
        if isinstance(value, torch.Tensor) and value.is_meta:
            if name not in values:
                raise SettingError(f"{name} is on the meta device: it has no value", hint="load the model first")
            yield name, values[name]()
        else:
            yield name, value


def _offloaded_values(model: nn.Module) -> dict[str, Any]:
    """Where the values of tensors are that hooks keep in mappings."""
    found: dict[str, Any] = {}
    for name, module in walk_modules(model):
        for hook in _align_hooks(module):
            if hook.weights_map is not None:
                weights = hook.weights_map
                found.update({join(name, key): lambda key=key, weights=weights: weights[key] for key in weights})
    return found


def _align_hooks(module: nn.Module) -> list[AlignDevicesHook]:
    hook = hook_of(module)
    return [] if hook is None else [item for item in flat(hook) if isinstance(item, AlignDevicesHook)]


def get_state_dict_offloaded_model(model: nn.Module) -> dict[str, Any]:
    """The complete state dict of a dispatched model. Tensors on disk are views of their files."""
    return dict(iterate_state_dict(model))


def get_state_dict_from_offload(
    module: nn.Module,
    module_name: str,
    state_dict: dict[str, Any],
    device_to_put_offload: torch.device | str | int = "cpu",
) -> dict[str, Any]:
    """`state_dict` with the values of one module's offloaded parameters, on a device; `module_name` ends in `.weight` or so."""
    prefix = module_name.rpartition(".")[0]
    for name, value in iterate_state_dict(module):
        full = join(prefix, name)
        if full in state_dict:
            state_dict[full] = value.to(device_to_put_offload)
    return state_dict


def has_offloaded_params(module: nn.Module) -> bool:
    """Whether a module's own parameters are elsewhere between forwards."""
    return any(hook.offload for hook in _align_hooks(module))


@contextmanager
def align_module_device(module: nn.Module, execution_device: torch.device | str | int | None = None) -> Iterator[None]:
    """A module's own parameters on a device for this block: the given one, else the one it runs on. Offloaded ones are brought.

    Parameters of the modules below stay where they are.
    """
    hooks = [hook for hook in _align_hooks(module) if hook.offload]
    if hooks:
        with hooks[-1].brought(module, execution_device):
            yield
    elif execution_device is None:
        yield
    else:
        slots = [slot for slot in own_slots(module) if not slot.is_buffer]
        devices = [slot.tensor.device for slot in slots]
        try:
            for slot in slots:
                replace(slot, slot.tensor.data.to(execution_device))
            yield
        finally:
            for slot, device in zip(slots, devices, strict=True):
                replace(slot, slot.tensor.data.to(device))
