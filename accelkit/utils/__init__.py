"""Functions that users of this API family look for under `utils`; they live in the runtime and load on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accelkit.runtime.bigmodel.bytesize import CustomDtype, convert_file_size_to_int, dtype_byte_size
    from accelkit.runtime.bigmodel.casting import attach_layerwise_casting_hooks
    from accelkit.runtime.bigmodel.device_map import check_device_map, clean_device_map, infer_auto_device_map
    from accelkit.runtime.bigmodel.loading import load_checkpoint_in_model, load_offloaded_weights, load_state_dict
    from accelkit.runtime.bigmodel.offload_files import (
        OffloadedWeightsLoader,
        PrefixedDataset,
        extract_submodules_state_dict,
        load_offloaded_weight,
        offload_state_dict,
        offload_weight,
        save_offload_index,
    )
    from accelkit.runtime.bigmodel.rooms import get_balanced_memory, get_max_memory
    from accelkit.runtime.bigmodel.sizes import (
        calculate_maximum_sizes,
        compute_module_sizes,
        compute_module_total_buffer_size,
        get_max_layer_size,
        get_module_leaves,
    )
    from accelkit.runtime.bigmodel.tensors import (
        get_non_persistent_buffers,
        named_module_tensors,
        set_module_tensor_to_device,
    )
    from accelkit.runtime.bigmodel.ties import (
        check_tied_parameters_in_config,
        check_tied_parameters_on_same_device,
        find_tied_parameters,
        id_tensor_storage,
        retie_parameters,
    )
    from accelkit.runtime.bigmodel.whole_state import (
        align_module_device,
        get_state_dict_from_offload,
        get_state_dict_offloaded_model,
        has_offloaded_params,
        iterate_state_dict,
    )
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
    "bigmodel.bytesize": (
        "CustomDtype",
        "convert_file_size_to_int",
        "dtype_byte_size",
    ),
    "bigmodel.casting": ("attach_layerwise_casting_hooks",),
    "bigmodel.device_map": (
        "check_device_map",
        "clean_device_map",
        "infer_auto_device_map",
    ),
    "bigmodel.loading": (
        "load_checkpoint_in_model",
        "load_offloaded_weights",
        "load_state_dict",
    ),
    "bigmodel.offload_files": (
        "OffloadedWeightsLoader",
        "PrefixedDataset",
        "extract_submodules_state_dict",
        "load_offloaded_weight",
        "offload_state_dict",
        "offload_weight",
        "save_offload_index",
    ),
    "bigmodel.rooms": (
        "get_balanced_memory",
        "get_max_memory",
    ),
    "bigmodel.sizes": (
        "calculate_maximum_sizes",
        "compute_module_sizes",
        "compute_module_total_buffer_size",
        "get_max_layer_size",
        "get_module_leaves",
    ),
    "bigmodel.tensors": (
        "get_non_persistent_buffers",
        "named_module_tensors",
        "set_module_tensor_to_device",
    ),
    "bigmodel.ties": (
        "check_tied_parameters_in_config",
        "check_tied_parameters_on_same_device",
        "find_tied_parameters",
        "id_tensor_storage",
        "retie_parameters",
    ),
    "bigmodel.whole_state": (
        "align_module_device",
        "get_state_dict_from_offload",
        "get_state_dict_offloaded_model",
        "has_offloaded_params",
        "iterate_state_dict",
    ),
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
    # big models
    "CustomDtype",
    "convert_file_size_to_int",
    "dtype_byte_size",
    "attach_layerwise_casting_hooks",
    "check_device_map",
    "clean_device_map",
    "infer_auto_device_map",
    "load_checkpoint_in_model",
    "load_offloaded_weights",
    "load_state_dict",
    "OffloadedWeightsLoader",
    "PrefixedDataset",
    "extract_submodules_state_dict",
    "load_offloaded_weight",
    "offload_state_dict",
    "offload_weight",
    "save_offload_index",
    "get_balanced_memory",
    "get_max_memory",
    "calculate_maximum_sizes",
    "compute_module_sizes",
    "compute_module_total_buffer_size",
    "get_max_layer_size",
    "get_module_leaves",
    "get_non_persistent_buffers",
    "named_module_tensors",
    "set_module_tensor_to_device",
    "check_tied_parameters_in_config",
    "check_tied_parameters_on_same_device",
    "find_tied_parameters",
    "id_tensor_storage",
    "retie_parameters",
    "align_module_device",
    "get_state_dict_from_offload",
    "get_state_dict_offloaded_model",
    "has_offloaded_params",
    "iterate_state_dict",
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
