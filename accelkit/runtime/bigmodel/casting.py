"""Hooks that keep weights in a small dtype, and chains of whole models that take turns on one device."""

import re
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import nn

from accelkit.runtime.bigmodel.hooks import ModelHook, Users, add_hook_to_module, remove_hook_from_module
from accelkit.runtime.bigmodel.inputs import aligned
from accelkit.runtime.bigmodel.tensors import own_slots, replace

CASTED: Final = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
"""Modules whose weights are worth storing small."""


class LayerwiseCastingHook(ModelHook):
    """Keeps a module's floating tensors in one dtype and computes in another."""

    def __init__(self, storage_dtype: torch.dtype, compute_dtype: torch.dtype, non_blocking: bool) -> None:
        self.storage_dtype = storage_dtype
        self.compute_dtype = compute_dtype
        self.non_blocking = non_blocking
        self._users = Users()

    def init_hook(self, module: nn.Module) -> nn.Module:
        """Cast to the storage dtype."""
        self._cast(module, self.storage_dtype)
        return module

    def pre_forward(self, module: nn.Module, /, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Cast to the compute dtype."""
        with self._users.lock:
            self._users.count += 1
            if self._users.count == 1:
                self._cast(module, self.compute_dtype)
        return args, kwargs

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        """Cast back."""
        self.after_failure(module)
        return output

    def after_failure(self, module: nn.Module) -> None:
        """Cast back."""
        with self._users.lock:
            self._users.count -= 1
            if self._users.count == 0:
                self._cast(module, self.storage_dtype)

    def _cast(self, module: nn.Module, dtype: torch.dtype) -> None:
        for slot in own_slots(module):
            if slot.tensor.is_floating_point():
                replace(slot, slot.tensor.data.to(dtype, non_blocking=self.non_blocking))


def attach_layerwise_casting_hooks(
    module: nn.Module,
    storage_dtype: torch.dtype,
    compute_dtype: torch.dtype,
    skip_modules_pattern: str | Sequence[str] | None = None,
    skip_modules_classes: Sequence[type[nn.Module]] | type[nn.Module] | None = None,
    non_blocking: bool = False,
) -> None:
    """Store linear layers and convolutions in `storage_dtype`, each cast to `compute_dtype` while it runs.

    Left out, with all below them, are modules of `skip_modules_classes` and those in whose dotted name one of the regular
    expressions of `skip_modules_pattern` is found.
    """
    patterns = [skip_modules_pattern] if isinstance(skip_modules_pattern, str) else list(skip_modules_pattern or ())
    classes = skip_modules_classes if isinstance(skip_modules_classes, type) else tuple(skip_modules_classes or ())
    _attach(module, "", (storage_dtype, compute_dtype, non_blocking), patterns, classes)


def _attach(
    module: nn.Module,
    name: str,
    setting: tuple[torch.dtype, torch.dtype, bool],
    patterns: Sequence[str],
    classes: type[nn.Module] | tuple[type[nn.Module], ...],
) -> None:
    if isinstance(module, classes) or any(re.search(pattern, name) for pattern in patterns):
        return
    if isinstance(module, CASTED):
        add_hook_to_module(module, LayerwiseCastingHook(*setting), append=True)
        return
    for key, child in module.named_children():
        _attach(child, f"{name}.{key}" if name else key, setting, patterns, classes)


class CpuOffload(ModelHook):
    """Brings a whole model to a device when it runs, after the one before it in a chain has gone back to the CPU."""

    def __init__(
        self,
        execution_device: torch.device | str | int | None = None,
        prev_module_hook: "UserCpuOffloadHook | None" = None,
    ) -> None:
        self.prev_module_hook = prev_module_hook
        kind = torch.accelerator.current_accelerator(check_available=True) if execution_device is None else None
        self.execution_device = kind or torch.device("cpu" if execution_device is None else execution_device)

    def init_hook(self, module: nn.Module) -> nn.Module:
        """To the CPU."""
        return module.to("cpu")

    def pre_forward(self, module: nn.Module, /, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """To the device."""
        if self.prev_module_hook is not None:
            self.prev_module_hook.offload()
        module.to(self.execution_device)
        return aligned(args, self.execution_device), aligned(kwargs, self.execution_device)


class UserCpuOffloadHook:
    """What a user holds of a model in a chain: sends it back to the CPU, or takes it out."""

    def __init__(self, model: nn.Module, hook: CpuOffload) -> None:
        self.model = model
        self.hook = hook

    def offload(self) -> None:
        """Send the model to the CPU."""
        self.hook.init_hook(self.model)

    def remove(self) -> None:
        """Take the hook off the model."""
        remove_hook_from_module(self.model)


def cpu_offload_with_hook(
    model: nn.Module,
    execution_device: torch.device | str | int | None = None,
    prev_module_hook: UserCpuOffloadHook | None = None,
) -> tuple[nn.Module, UserCpuOffloadHook]:
    """Keep a model on the CPU until it runs, then on a device until `offload()`, or until the next of a chain runs.

    `execution_device` is the present accelerator, or the CPU, unless given. `prev_module_hook` is the hook of the model before it
    in the chain. Returns the model and its own hook.
    """
    hook = CpuOffload(execution_device, prev_module_hook)
    add_hook_to_module(model, hook, append=True)
    return model, UserCpuOffloadHook(model, hook)
