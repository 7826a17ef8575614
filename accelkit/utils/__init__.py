"""Functions that users of this API family look for under `utils`; they live in the runtime and load on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accelkit.runtime.available import *  # noqa: F403
    from accelkit.runtime.bigmodel.bytesize import *  # noqa: F403
    from accelkit.runtime.bigmodel.casting import *  # noqa: F403
    from accelkit.runtime.bigmodel.device_map import *  # noqa: F403
    from accelkit.runtime.bigmodel.loading import *  # noqa: F403
    from accelkit.runtime.bigmodel.offload_files import *  # noqa: F403
    from accelkit.runtime.bigmodel.rooms import *  # noqa: F403
    from accelkit.runtime.bigmodel.sizes import *  # noqa: F403
    from accelkit.runtime.bigmodel.tensors import *  # noqa: F403
    from accelkit.runtime.bigmodel.ties import *  # noqa: F403
    from accelkit.runtime.bigmodel.whole_state import *  # noqa: F403
    from accelkit.runtime.checkpoint.merging import *  # noqa: F403
    from accelkit.runtime.checkpoint.names import *  # noqa: F403
    from accelkit.runtime.checkpoint.project import *  # noqa: F403
    from accelkit.runtime.checkpoint.single import *  # noqa: F403
    from accelkit.runtime.compilation import *  # noqa: F403
    from accelkit.runtime.enumerations import *  # noqa: F403
    from accelkit.runtime.environment import *  # noqa: F403
    from accelkit.runtime.errors import *  # noqa: F403
    from accelkit.runtime.everyday import *  # noqa: F403
    from accelkit.runtime.float8 import *  # noqa: F403
    from accelkit.runtime.launchers import *  # noqa: F403
    from accelkit.runtime.machine import *  # noqa: F403
    from accelkit.runtime.memory import *  # noqa: F403
    from accelkit.runtime.models import *  # noqa: F403
    from accelkit.runtime.operations import *  # noqa: F403
    from accelkit.runtime.parallelism import *  # noqa: F403
    from accelkit.runtime.ports import *  # noqa: F403
    from accelkit.runtime.precision import *  # noqa: F403
    from accelkit.runtime.progress import *  # noqa: F403
    from accelkit.runtime.rank_logging import *  # noqa: F403
    from accelkit.runtime.rng import *  # noqa: F403
    from accelkit.runtime.settings import *  # noqa: F403
    from accelkit.runtime.strategies.deepspeed_plugin import *  # noqa: F403
    from accelkit.runtime.strategies.fsdp_plugin import *  # noqa: F403
    from accelkit.runtime.tensors import *  # noqa: F403
    from accelkit.runtime.tracking import *  # noqa: F403

_HOMES: dict[str, tuple[str, ...]] = {
    "parallelism": ("ParallelismConfig", "TorchContextParallelConfig", "TorchTensorParallelConfig"),
    "strategies.deepspeed_model": ("DeepSpeedEngineWrapper",),
    "strategies.deepspeed_plugin": ("DeepSpeedPlugin", "DummyOptim", "DummyScheduler", "HfDeepSpeedConfig"),
    "strategies.fsdp_plugin": ("FullyShardedDataParallelPlugin",),
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
        "fallback_allocate",
        "get_max_layer_size",
        "get_module_leaves",
        "get_module_size_with_ties",
    ),
    "bigmodel.tensors": (
        "check_device_same",
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
    "checkpoint.merging": ("merge_fsdp_weights",),
    "checkpoint.project": ("ProjectConfiguration",),
    "checkpoint.names": (
        "MODEL_NAME",
        "OPTIMIZER_NAME",
        "RNG_STATE_NAME",
        "SAFE_MODEL_NAME",
        "SAFE_WEIGHTS_INDEX_NAME",
        "SAFE_WEIGHTS_NAME",
        "SCALER_NAME",
        "SCHEDULER_NAME",
        "WEIGHTS_INDEX_NAME",
        "WEIGHTS_NAME",
    ),
    "checkpoint.single": (
        "clean_state_dict_for_safetensors",
        "load",
        "save",
    ),
    "operations": (
        "broadcast",
        "broadcast_object_list",
        "copy_tensor_to_devices",
        "gather",
        "gather_object",
        "gather_tensor_shape",
        "pad_across_processes",
        "reduce",
        "synchronize_rng_state",
        "synchronize_rng_states",
        "wait_for_everyone",
    ),
    "tensors": (
        "ConvertOutputsToFp32",
        "GatheredParameters",
        "TensorInformation",
        "concatenate",
        "convert_outputs_to_fp32",
        "convert_to_fp32",
        "find_batch_size",
        "find_device",
        "get_data_structure",
        "get_shape",
        "honor_type",
        "ignorant_find_batch_size",
        "initialize_tensors",
        "is_namedtuple",
        "is_tensor_information",
        "is_torch_tensor",
        "listify",
        "pad_input_tensors",
        "recursively_apply",
        "send_to_device",
        "slice_tensors",
    ),
    "models": (
        "extract_model_from_parallel",
        "is_peft_model",
    ),
    "precision": (
        "get_grad_scaler",
        "get_mixed_precision_context_manager",
    ),
    "settings": (
        "AORecipeKwargs",
        "AutocastKwargs",
        "DataLoaderConfiguration",
        "DistributedDataParallelKwargs",
        "DistributedType",
        "GradientAccumulationPlugin",
        "GradScalerKwargs",
        "InitProcessGroupKwargs",
        "KwargsHandler",
        "ProfileKwargs",
        "TorchDynamoPlugin",
    ),
    "enumerations": (
        "ComputeEnvironment",
        "DDPCommunicationHookType",
        "DynamoBackend",
        "FP8BackendType",
        "PrecisionType",
        "RNGType",
    ),
    "float8": (
        "convert_model_to_fp8_ao",
        "filter_linear_layers",
        "find_first_last_linear_layers",
        "has_ao_layers",
    ),
    "rng": ("set_seed",),
    "available": (
        "check_cuda_fp8_capability",
        "compare_versions",
        "deepspeed_required",
        "is_4bit_bnb_available",
        "is_8bit_bnb_available",
        "is_aim_available",
        "is_amdsmi_available",
        "is_bf16_available",
        "is_bitsandbytes_multi_backend_available",
        "is_bnb_available",
        "is_boto3_available",
        "is_clearml_available",
        "is_comet_ml_available",
        "is_cuda_available",
        "is_datasets_available",
        "is_deepspeed_available",
        "is_dvclive_available",
        "is_fp16_available",
        "is_fp8_available",
        "is_habana_gaudi1",
        "is_hpu_available",
        "is_import_timer_available",
        "is_lomo_available",
        "is_matplotlib_available",
        "is_megatron_lm_available",
        "is_mlflow_available",
        "is_mlu_available",
        "is_mps_available",
        "is_msamp_available",
        "is_musa_available",
        "is_neuron_available",
        "is_npu_available",
        "is_numpy_available",
        "is_pandas_available",
        "is_peft_available",
        "is_pippy_available",
        "is_pynvml_available",
        "is_pytest_available",
        "is_rich_available",
        "is_rocm_available",
        "is_sagemaker_available",
        "is_schedulefree_available",
        "is_sdaa_available",
        "is_swanlab_available",
        "is_tensorboard_available",
        "is_timm_available",
        "is_torch_distributed_available",
        "is_torch_version",
        "is_torch_xla_available",
        "is_torchao_available",
        "is_torchdata_available",
        "is_torchdata_stateful_dataloader_available",
        "is_torchvision_available",
        "is_tqdm_available",
        "is_trackio_available",
        "is_transformer_engine_available",
        "is_transformer_engine_mxfp8_available",
        "is_transformers_available",
        "is_triton_available",
        "is_wandb_available",
        "is_weights_only_available",
        "is_xccl_available",
        "is_xpu_available",
        "torchao_required",
    ),
    "environment": (
        "clear_environment",
        "convert_dict_to_env_variables",
        "get_int_from_env",
        "parse_choice_from_env",
        "parse_flag_from_env",
        "patch_environment",
    ),
    "ports": (
        "get_free_port",
        "is_port_in_use",
    ),
    "everyday": (
        "convert_bytes",
        "get_pretty_name",
        "merge_dicts",
        "model_has_dtensor",
        "recursive_getattr",
        "str_to_bool",
    ),
    "compilation": (
        "compile_regions",
        "has_compiled_regions",
        "has_repeated_blocks",
        "is_compiled_module",
        "is_repeated_blocks",
    ),
    "launchers": ("PrepareForLaunch",),
    "machine": (
        "CPUInformation",
        "are_libraries_initialized",
        "check_cuda_p2p_ib_support",
        "check_os_kernel",
        "get_cpu_distributed_information",
        "get_current_device_type",
        "get_driver_version",
        "get_gpu_info",
        "override_numa_affinity",
        "set_numa_affinity",
        "write_basic_config",
    ),
    "memory": (
        "clear_device_cache",
        "find_executable_batch_size",
        "release_memory",
        "should_reduce_batch_size",
    ),
    "progress": ("tqdm",),
    "rank_logging": ("get_logger",),
    "tracking": (
        "GeneralTracker",
        "LoggerType",
        "filter_trackers",
        "get_available_trackers",
        "register_tracker_class",
    ),
    "errors": ("DistributedOperationException",),
}
"""Module of the runtime -> the public names that it holds."""

__all__ = [name for names in _HOMES.values() for name in names]


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
