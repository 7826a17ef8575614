"""Which models were prepared, and the way back."""

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from accelkit.runtime import devices, precision
from accelkit.runtime.errors import SettingError


class Wrapper(nn.Module):
    """What a strategy of this library puts around a model, which is its `module`."""

    module: nn.Module


class Prepared:
    """Original and prepared objects of one kind, so that preparing twice gives the same object."""

    def __init__(self) -> None:
        self._pairs: list[tuple[Any, Any]] = []

    @property
    def objects(self) -> list[Any]:
        """What prepare returned, in order."""
        return [prepared for _, prepared in self._pairs]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.objects)

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, place: int) -> Any:
        return self._pairs[place][1]

    def find(self, given: Any) -> Any:
        """What prepare made of `given`, or `given` itself when prepare made it; None when it is new."""
        for original, prepared in self._pairs:
            if given is original or given is prepared:
                return prepared
        return None

    def given(self, prepared: Any) -> Any:
        """What prepare made `prepared` of; `prepared` itself when it did not."""
        return next((original for original, made in self._pairs if made is prepared), prepared)

    def add(self, original: Any, prepared: Any) -> None:
        """Remember what prepare made."""
        self._pairs.append((original, prepared))

    def clear(self) -> None:
        """Let go of everything."""
        self._pairs.clear()


def engine(model: nn.Module) -> nn.Module:
    """What a strategy has made: a model without the `torch.compile` around it, if that is what is compiled."""
    compiled = model.__dict__["_modules"].get("_orig_mod")
    return compiled if isinstance(compiled, (DistributedDataParallel, Wrapper)) else model


def put(model: nn.Module, device: torch.device) -> None:
    """Move a model to this rank's device. Its parameters stay the objects that they are: optimizers and tied weights see no difference."""
    swaps = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(swaps or not devices.of(device).is_torch)
    try:
        model.to(device)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swaps)


def has_several_places(model: nn.Module) -> bool:
    """Whether the model was dispatched with a map that puts its parts on several devices, the disk being one."""
    maps = [module.__dict__.get("hf_device_map", {}) for module in model.modules()]
    return any(len({str(place) for place in mapped.values()}) > 1 for mapped in maps)


def is_offloaded(model: nn.Module) -> bool:
    """Whether weights of the model are brought to their device for each forward, and get no gradients therefore."""
    hooks = [module.__dict__.get("_hf_hook") for module in model.modules()]
    return any(getattr(hook, "no_grad", False) or getattr(hook, "offload", False) for hook in hooks)


def refuse_divided(model: nn.Module, strategy: str) -> None:
    """Raise SettingError for a model of which this rank's device does not hold all: no strategy for several ranks trains that."""
    if has_several_places(model) or is_offloaded(model):
        raise SettingError(
            f"strategy {strategy!r} trains a model that each rank's device holds, and this {type(model).__name__} is offloaded, or "
            "divided among several devices",
            hint="load it without a device_map, or prepare_model(model, evaluation_mode=True) for inference on every rank",
        )


def unwrap(model: nn.Module, *, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True) -> Any:
    """The model that was given to prepare: exactly that object.

    `keep_fp32_wrapper=False` also takes off the hooks by which its forward runs in mixed precision; `keep_torch_compile=False`
    also returns what was compiled. Compiling a prepared model wraps the wrapper, which is taken off in any case.
    """
    inner: Any = engine(model)
    while isinstance(inner, (DistributedDataParallel, nn.DataParallel, Wrapper)):
        inner = inner.module
    if not keep_torch_compile:
        inner = getattr(inner, "_orig_mod", inner)
    if not keep_fp32_wrapper:
        precision.detach(getattr(inner, "_orig_mod", inner))
        precision.detach(inner)
    return inner


def is_peft_model(model: Any) -> bool:
    """Whether a model (wrapped or not) is one of the peft library, which is not imported for the answer."""
    kind = getattr(sys.modules.get("peft"), "PeftModel", None)
    return kind is not None and isinstance(unwrap(model), kind)


def extract_model_from_parallel(
    model: nn.Module, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True, recursive: bool = False
) -> Any:
    """The model inside what wraps it for several ranks; see :func:`unwrap`. `recursive`: also wherever such a wrapper lies inside it.

    Inner wrappers are replaced in the model itself.
    """
    inner = unwrap(model, keep_fp32_wrapper=keep_fp32_wrapper, keep_torch_compile=keep_torch_compile)
    if recursive:
        for parent in list(inner.modules()):
            for name, child in list(parent.named_children()):
                setattr(parent, name, unwrap(child, keep_torch_compile=keep_torch_compile))
    return inner
