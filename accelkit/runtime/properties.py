"""What `Accelerator` shows of the state, of its settings and of the loop, as properties."""

from pathlib import Path
from typing import Any

import torch

from accelkit.runtime import env
from accelkit.runtime.collectives.nested import NestedCollectives
from accelkit.runtime.gradients import GradientState
from accelkit.runtime.models import Prepared
from accelkit.runtime.precision import Precision
from accelkit.runtime.processes import ProcessActions
from accelkit.runtime.settings import (
    AutocastKwargs,
    DataLoaderConfiguration,
    DistributedDataParallelKwargs,
    DistributedType,
    GradScalerKwargs,
    Handlers,
    InitProcessGroupKwargs,
    check_num_steps,
)
from accelkit.runtime.state import AcceleratorState, PartialState
from accelkit.runtime.strategies.base import Strategy
from accelkit.runtime.strategies.deepspeed_plugin import DeepSpeedPlugin

_MULTI_DEVICE = frozenset(
    kind for kind in DistributedType if kind.name.startswith("MULTI_") and kind is not DistributedType.MULTI_CPU
)


class AcceleratorProperties(ProcessActions):
    """The place of this rank, the settings in force, and where the loop is."""

    state: AcceleratorState
    gradient_state: GradientState
    dataloader_config: DataLoaderConfiguration
    _partial: PartialState
    _strategy: Strategy
    _precision: Precision
    _handlers: Handlers
    _optimizers: Prepared

    # ---- place ----------------------------------------------------------------------------------------------------

    @property
    def num_processes(self) -> int:
        """Ranks of the run."""
        return self._partial.num_processes

    @property
    def process_index(self) -> int:
        """This rank, from 0."""
        return self._partial.process_index

    @property
    def local_process_index(self) -> int:
        """This rank among those of its node, from 0."""
        return self._partial.local_process_index

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        return self._partial.device

    @property
    def distributed_type(self) -> DistributedType:
        """How ranks work together."""
        return self._strategy.distributed_type

    @property
    def multi_device(self) -> bool:
        """Whether every rank has the whole model on an accelerator of its own; false on CPUs, and where models are sharded."""
        return self.use_distributed and self.distributed_type in _MULTI_DEVICE

    @property
    def operations(self) -> NestedCollectives:
        """Collective operations on nested structures."""
        return self._partial.operations

    def wait_for_everyone(self) -> None:
        """Return when all ranks have called it."""
        self.operations.barrier()

    @property
    def deepspeed_plugin(self) -> DeepSpeedPlugin | None:
        """How DeepSpeed trains, and what each "auto" of its config became; None under other strategies."""
        plugin = self._strategy.plugin
        return plugin if isinstance(plugin, DeepSpeedPlugin) else None

    # ---- settings -------------------------------------------------------------------------------------------------

    @property
    def strategy(self) -> str:
        """Name of the strategy in force."""
        return self._strategy.name

    @property
    def mixed_precision(self) -> str:
        """The precision in force."""
        return self._precision.name

    @property
    def native_amp(self) -> bool:
        """Whether models compute in a smaller type."""
        return self._precision.native_amp

    @property
    def split_batches(self) -> bool:
        """Whether a loader's batch size is that of all ranks together."""
        return self.dataloader_config.split_batches

    @property
    def dispatch_batches(self) -> bool | None:
        """Whether rank 0 reads the data and hands it out."""
        return self.dataloader_config.dispatch_batches

    @property
    def even_batches(self) -> bool:
        """Whether loaders prepared from now on give every rank as many batches."""
        return self.dataloader_config.even_batches

    @even_batches.setter
    def even_batches(self, value: bool) -> None:
        self.dataloader_config.even_batches = value

    @property
    def use_seedable_sampler(self) -> bool:
        """Whether the order of shuffling follows from the seed alone."""
        return self.dataloader_config.use_seedable_sampler

    @property
    def non_blocking(self) -> bool:
        """Whether batches are copied to the device without waiting."""
        return self.dataloader_config.non_blocking

    @property
    def use_stateful_dataloader(self) -> bool:
        """Whether loaders are prepared to be saved in the middle of an epoch by themselves."""
        return self.dataloader_config.use_stateful_dataloader

    @property
    def ddp_handler(self) -> DistributedDataParallelKwargs | None:
        """The script's handler of that class; None where it gave none."""
        return self._handlers.given(DistributedDataParallelKwargs)

    @property
    def scaler_handler(self) -> GradScalerKwargs | None:
        """The script's handler of that class; None where it gave none."""
        return self._handlers.given(GradScalerKwargs)

    @property
    def init_handler(self) -> InitProcessGroupKwargs | None:
        """The script's handler of that class; None where it gave none."""
        return self._handlers.given(InitProcessGroupKwargs)

    @property
    def autocast_handler(self) -> AutocastKwargs | None:
        """The script's handler of that class; None where it gave none."""
        return self._handlers.given(AutocastKwargs)

    @property
    def output_dir(self) -> Path:
        """The folder for what the run produces (KIT_OUTPUT_DIR, else `outputs`); it exists."""
        folder = env.output_dir()
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    # ---- the loop -------------------------------------------------------------------------------------------------

    @property
    def sync_gradients(self) -> bool:
        """Whether this step completes an accumulation window."""
        return self.gradient_state.sync_gradients

    @sync_gradients.setter
    def sync_gradients(self, value: bool) -> None:
        self.gradient_state.sync_gradients = value

    @property
    def gradient_accumulation_steps(self) -> int:
        """Micro-batches per optimizer step. Raises SettingError when set to what is no whole number of at least 1."""
        return self.gradient_state.num_steps

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, value: int) -> None:
        check_num_steps(value)
        self.gradient_state.num_steps = value

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether any prepared optimizer's last due step was skipped because a gradient overflowed."""
        return any(optimizer.step_was_skipped for optimizer in self._optimizers.objects)

    # ---- sharded models: read by libraries of this API family ------------------------------------------------------

    @property
    def is_fsdp2(self) -> bool:
        """Whether models are sharded by torch's `fully_shard`."""
        return self.state.is_fsdp2

    @property
    def is_composable_parallelism_enabled(self) -> bool:
        """Whether models are sharded by torch's `fully_shard`."""
        return self.is_fsdp2

    @property
    def parallelism_config(self) -> Any:
        """How ranks are laid out in several dimensions; None where they are in one."""
        return self.state.parallelism_config

    @property
    def torch_device_mesh(self) -> Any:
        """The mesh of that layout; None without one."""
        return self.state.device_mesh

    @property
    def should_save_model(self) -> bool:
        """Whether this rank writes a model that every rank holds."""
        return True if self.parallelism_config is not None else self.is_local_main_process

    @property
    def tensor_parallel_rank(self) -> int:
        """This rank's place in the tensor-parallel dimension. Raises RuntimeError where ranks are in one dimension."""
        return self._place("tp", "tensor_parallel_rank")

    @property
    def data_parallel_rank(self) -> int:
        """This rank's place in the replicated dimension. Raises RuntimeError where ranks are in one dimension."""
        return self._place("dp_replicate", "data_parallel_rank")

    @property
    def data_parallel_shard_rank(self) -> int:
        """This rank's place in the sharded dimension. Raises RuntimeError where ranks are in one dimension."""
        return self._place("dp_shard", "data_parallel_shard_rank")

    def _place(self, axis: str, name: str) -> int:
        if self.parallelism_config is None:
            raise RuntimeError(
                f"{name}: this run has no parallelism_config; its ranks are in one dimension, process_index"
            )
        place: int = self.parallelism_config.coordinate(self.process_index, axis)
        return place
