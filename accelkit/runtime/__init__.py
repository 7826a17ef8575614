"""What a training script imports: `Accelerator` and its parts. Importing the package costs nothing; names load on first use."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # what type checkers take for true; importing typing would cost more than all the rest
if TYPE_CHECKING:
    from typing import Any

    from accelkit.runtime.accelerator import Accelerator
    from accelkit.runtime.available import is_rich_available
    from accelkit.runtime.bigmodel.casting import cpu_offload_with_hook
    from accelkit.runtime.bigmodel.device_map import infer_auto_device_map
    from accelkit.runtime.bigmodel.dispatch import (
        cpu_offload,
        disk_offload,
        dispatch_model,
        load_checkpoint_and_dispatch,
    )
    from accelkit.runtime.bigmodel.empty import init_empty_weights, init_on_device
    from accelkit.runtime.bigmodel.failures import CheckpointFileError, OffloadError
    from accelkit.runtime.bigmodel.loading import load_checkpoint_in_model
    from accelkit.runtime.checkpoint.background import SaveHandle
    from accelkit.runtime.checkpoint.project import ProjectConfiguration
    from accelkit.runtime.data.loader import skip_first_batches
    from accelkit.runtime.data.public import prepare_data_loader
    from accelkit.runtime.data.sampler import SeedableRandomSampler
    from accelkit.runtime.enumerations import DDPCommunicationHookType
    from accelkit.runtime.errors import (
        AccelkitError,
        BatchSourceError,
        CheckpointError,
        DistributedOperationException,
        MissingPackageError,
        RankFailedError,
        SettingError,
        TrackerError,
        UnsupportedError,
    )
    from accelkit.runtime.gradients import GradientState
    from accelkit.runtime.launchers import debug_launcher, notebook_launcher
    from accelkit.runtime.local_sgd import LocalSGD
    from accelkit.runtime.memory import find_executable_batch_size
    from accelkit.runtime.operations import synchronize_rng_states
    from accelkit.runtime.optimizer import AcceleratedOptimizer
    from accelkit.runtime.parallelism import ParallelismConfig, TorchContextParallelConfig, TorchTensorParallelConfig
    from accelkit.runtime.rank_logging import get_logger
    from accelkit.runtime.rng import set_seed
    from accelkit.runtime.scheduler import AcceleratedScheduler
    from accelkit.runtime.settings import (
        AutocastKwargs,
        DataLoaderConfiguration,
        DistributedDataParallelKwargs,
        DistributedType,
        GradientAccumulationPlugin,
        GradScalerKwargs,
        InitProcessGroupKwargs,
        ProfileKwargs,
        TorchDynamoPlugin,
        XlaKwargs,
    )
    from accelkit.runtime.state import AcceleratorState, PartialState
    from accelkit.runtime.strategies.deepspeed_plugin import DeepSpeedPlugin
    from accelkit.runtime.strategies.fsdp_plugin import FullyShardedDataParallelPlugin
    from accelkit.runtime.tracking.base import GeneralTracker

_HOMES = {
    "Accelerator": "accelerator",
    "PartialState": "state",
    "AcceleratorState": "state",
    "GradientState": "gradients",
    "DistributedType": "settings",
    "DataLoaderConfiguration": "settings",
    "GradientAccumulationPlugin": "settings",
    "DeepSpeedPlugin": "strategies.deepspeed_plugin",
    "FullyShardedDataParallelPlugin": "strategies.fsdp_plugin",
    "ParallelismConfig": "parallelism",
    "TorchContextParallelConfig": "parallelism",
    "TorchTensorParallelConfig": "parallelism",
    "ProjectConfiguration": "checkpoint.project",
    "SaveHandle": "checkpoint.background",
    "AutocastKwargs": "settings",
    "DistributedDataParallelKwargs": "settings",
    "GradScalerKwargs": "settings",
    "InitProcessGroupKwargs": "settings",
    "ProfileKwargs": "settings",
    "TorchDynamoPlugin": "settings",
    "XlaKwargs": "settings",
    "AcceleratedOptimizer": "optimizer",
    "AcceleratedScheduler": "scheduler",
    "SeedableRandomSampler": "data.sampler",
    "prepare_data_loader": "data.public",
    "skip_first_batches": "data.loader",
    "set_seed": "rng",
    "synchronize_rng_states": "operations",
    "is_rich_available": "available",
    "LocalSGD": "local_sgd",
    "debug_launcher": "launchers",
    "notebook_launcher": "launchers",
    "RankFailedError": "errors",
    "find_executable_batch_size": "memory",
    "get_logger": "rank_logging",
    "DDPCommunicationHookType": "enumerations",
    "init_empty_weights": "bigmodel.empty",
    "init_on_device": "bigmodel.empty",
    "cpu_offload": "bigmodel.dispatch",
    "disk_offload": "bigmodel.dispatch",
    "dispatch_model": "bigmodel.dispatch",
    "load_checkpoint_and_dispatch": "bigmodel.dispatch",
    "cpu_offload_with_hook": "bigmodel.casting",
    "infer_auto_device_map": "bigmodel.device_map",
    "load_checkpoint_in_model": "bigmodel.loading",
    "CheckpointFileError": "bigmodel.failures",
    "OffloadError": "bigmodel.failures",
    "AccelkitError": "errors",
    "BatchSourceError": "errors",
    "CheckpointError": "errors",
    "DistributedOperationException": "errors",
    "MissingPackageError": "errors",
    "TrackerError": "errors",
    "GeneralTracker": "tracking.base",
    "SettingError": "errors",
    "UnsupportedError": "errors",
}

__all__ = [
    # the object that a script makes
    "Accelerator",
    # state
    "PartialState",
    "AcceleratorState",
    "GradientState",
    "DistributedType",
    # settings
    "DataLoaderConfiguration",
    "DDPCommunicationHookType",
    "DeepSpeedPlugin",
    "FullyShardedDataParallelPlugin",
    "GradientAccumulationPlugin",
    "ParallelismConfig",
    "TorchContextParallelConfig",
    "TorchTensorParallelConfig",
    "ProjectConfiguration",
    "AutocastKwargs",
    "DistributedDataParallelKwargs",
    "GradScalerKwargs",
    "InitProcessGroupKwargs",
    "ProfileKwargs",
    "TorchDynamoPlugin",
    "XlaKwargs",
    # what prepare returns
    "AcceleratedOptimizer",
    "AcceleratedScheduler",
    "SeedableRandomSampler",
    # what an asynchronous save returns
    "SaveHandle",
    # what a tracker of one's own derives from
    "GeneralTracker",
    # functions
    "set_seed",
    "synchronize_rng_states",
    "is_rich_available",
    "LocalSGD",
    "debug_launcher",
    "notebook_launcher",
    "find_executable_batch_size",
    "get_logger",
    "prepare_data_loader",
    "skip_first_batches",
    # big models
    "init_empty_weights",
    "init_on_device",
    "cpu_offload",
    "disk_offload",
    "dispatch_model",
    "load_checkpoint_and_dispatch",
    "cpu_offload_with_hook",
    "infer_auto_device_map",
    "load_checkpoint_in_model",
    # errors
    "AccelkitError",
    "BatchSourceError",
    "CheckpointError",
    "CheckpointFileError",
    "OffloadError",
    "DistributedOperationException",
    "MissingPackageError",
    "RankFailedError",
    "SettingError",
    "TrackerError",
    "UnsupportedError",
]


def __getattr__(name: str) -> Any:
    """Load the module that holds a public name."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The module's own names and the public ones."""
    return sorted({*globals(), *__all__})
