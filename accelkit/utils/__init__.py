"""Functions that users of this API family look for under `utils`; they live in the runtime and load on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accelkit.runtime.checkpoint.project import ProjectConfiguration
    from accelkit.runtime.checkpoint.single import load, save
    from accelkit.runtime.errors import DistributedOperationException
    from accelkit.runtime.models import extract_model_from_parallel
    from accelkit.runtime.operations import (
        broadcast,
        broadcast_object_list,
        concatenate,
        convert_to_fp32,
        find_batch_size,
        gather,
        gather_object,
        pad_across_processes,
        recursively_apply,
        reduce,
        send_to_device,
        slice_tensors,
        wait_for_everyone,
    )
    from accelkit.runtime.rng import set_seed
    from accelkit.runtime.settings import (
        AutocastKwargs,
        DataLoaderConfiguration,
        DistributedDataParallelKwargs,
        DistributedType,
        GradientAccumulationPlugin,
        GradScalerKwargs,
        InitProcessGroupKwargs,
    )

_HOMES = {
    "checkpoint.project": ("ProjectConfiguration",),
    "checkpoint.single": ("load", "save"),
    "models": ("extract_model_from_parallel",),
    "errors": ("DistributedOperationException",),
    "operations": (
        "broadcast",
        "broadcast_object_list",
        "concatenate",
        "convert_to_fp32",
        "find_batch_size",
        "gather",
        "gather_object",
        "pad_across_processes",
        "recursively_apply",
        "reduce",
        "send_to_device",
        "slice_tensors",
        "wait_for_everyone",
    ),
    "rng": ("set_seed",),
    "settings": (
        "AutocastKwargs",
        "DataLoaderConfiguration",
        "DistributedDataParallelKwargs",
        "DistributedType",
        "GradientAccumulationPlugin",
        "GradScalerKwargs",
        "InitProcessGroupKwargs",
    ),
}

__all__ = [
    # collective operations
    "gather",
    "gather_object",
    "reduce",
    "broadcast",
    "broadcast_object_list",
    "pad_across_processes",
    "wait_for_everyone",
    # nested structures
    "concatenate",
    "convert_to_fp32",
    "find_batch_size",
    "recursively_apply",
    "send_to_device",
    "slice_tensors",
    # models and files
    "extract_model_from_parallel",
    "save",
    "load",
    # seeds
    "set_seed",
    # settings
    "AutocastKwargs",
    "DataLoaderConfiguration",
    "DistributedDataParallelKwargs",
    "DistributedType",
    "GradientAccumulationPlugin",
    "GradScalerKwargs",
    "InitProcessGroupKwargs",
    "ProjectConfiguration",
    # errors
    "DistributedOperationException",
]


def __getattr__(name: str) -> Any:
    """Load the runtime module that holds a public name."""
    for home, held in _HOMES.items():
        if name in held:
            value = getattr(import_module(f"accelkit.runtime.{home}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The module's own names and the public ones."""
    return sorted({*globals(), *__all__})
