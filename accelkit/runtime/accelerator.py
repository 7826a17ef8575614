"""`Accelerator`: what a training script talks to. It composes the parts and forwards to them; each decision is made once, at the start."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from accelkit.runtime import choices, models, precision, rng, strategies
from accelkit.runtime.accumulate import Accumulation
from accelkit.runtime.checkpoint.methods import CheckpointMethods
from accelkit.runtime.checkpoint.project import ProjectConfiguration
from accelkit.runtime.communication import CommunicationMethods
from accelkit.runtime.data.loader import PreparedLoader
from accelkit.runtime.data.prepare import prepare_data_loader
from accelkit.runtime.errors import SettingError
from accelkit.runtime.gradients import GradientState
from accelkit.runtime.operations import synchronizer
from accelkit.runtime.optimizer import AcceleratedOptimizer
from accelkit.runtime.parallelism import ParallelismConfig
from accelkit.runtime.properties import AcceleratorProperties
from accelkit.runtime.scheduler import AcceleratedScheduler
from accelkit.runtime.settings import (
    DataLoaderConfiguration,
    GradientAccumulationPlugin,
    Handlers,
    InitProcessGroupKwargs,
    KwargsHandler,
    TorchDynamoPlugin,
)
from accelkit.runtime.state import AcceleratorState, PartialState
from accelkit.runtime.strategies.deepspeed_plugin import DeepSpeedPlugin
from accelkit.runtime.strategies.fsdp_plugin import FullyShardedDataParallelPlugin
from accelkit.runtime.tool_methods import ToolMethods
from accelkit.runtime.training import TrainingMethods

_SCHEDULER: Final = (
    torch.optim.lr_scheduler.LRScheduler,
    torch.optim.lr_scheduler.ReduceLROnPlateau,
    AcceleratedScheduler,
)


class Accelerator(AcceleratorProperties, TrainingMethods, CommunicationMethods, CheckpointMethods, ToolMethods):
    """Runs one training script on one process or many, on whatever device each of them has.

    Settings that are not given come from the launch (`kit run`, or KIT_* variables), and then from the defaults; a setting
    that is given wins over the launch's, with a warning that names both.

    A further Accelerator in the same process shares the settings of the first.

    Args:
        device_placement: put models, batches and optimizer state on `device`.
        mixed_precision: "no", "bf16", "fp16" or "fp8" (by torchao). Weights stay float32; forward runs under autocast.
        gradient_accumulation_steps: micro-batches per optimizer step, used by `accumulate` and `backward`.
        cpu: use the CPU although there is another device.
        strategy: "auto" (ddp for more than one rank, else single; xla on that device) or a name from the registry of strategies.
        seed: seed of all generators on all ranks, set once, now.
        deterministic: the same bits again on the same hardware; seed 0 where none is given.
        log_with: trackers: a name, a `GeneralTracker`, a list of these, or "all" that are installed; `init_trackers` starts them.
        project_dir: where the project keeps checkpoints and logs; `project_config` says more, and wins.
        dataloader_config, project_config, gradient_accumulation_plugin, kwargs_handlers: see these classes.
        step_scheduler_with_optimizer: a prepared scheduler follows its optimizer; False: it moves at every call.
        step_scheduler_once: a prepared scheduler moves once per optimizer step, not once per rank: for schedules whose length was
            taken from the prepared loader.
        fsdp_plugin, parallelism_config: how models are sharded, and how ranks are laid out; each implies strategy "fsdp".
        deepspeed_plugin: how DeepSpeed's engine trains; implies strategy "deepspeed".
        rng_types: generators ("torch", "cuda", ...) whose state rank 0 gives to all ranks before each epoch of a prepared loader. Loaders
            agree on their order without it.
        dynamo_backend: compile prepared models with this backend of torch.compile; `dynamo_plugin` says more.

    Raises SettingError for settings that are wrong or contradict each other or an earlier Accelerator, UnsupportedError for
    what the device or the number of ranks does not allow.
    """

    def __init__(
        self,
        device_placement: bool = True,
        mixed_precision: str | None = None,
        gradient_accumulation_steps: int | None = None,
        cpu: bool = False,
        *,
        strategy: str | None = None,
        seed: int | None = None,
        deterministic: bool | None = None,
        dataloader_config: DataLoaderConfiguration | None = None,
        log_with: Any = None,
        project_dir: str | Path | None = None,
        project_config: ProjectConfiguration | None = None,
        gradient_accumulation_plugin: GradientAccumulationPlugin | None = None,
        step_scheduler_with_optimizer: bool = True,
        step_scheduler_once: bool = False,
        kwargs_handlers: list[KwargsHandler] | None = None,
        dynamo_backend: Any = None,
        dynamo_plugin: TorchDynamoPlugin | None = None,
        fsdp_plugin: FullyShardedDataParallelPlugin | None = None,
        deepspeed_plugin: DeepSpeedPlugin | None = None,
        parallelism_config: ParallelismConfig | None = None,
        rng_types: Sequence[Any] | None = None,
    ) -> None:
        self.device_placement = device_placement
        handlers = Handlers(kwargs_handlers, (fsdp_plugin, deepspeed_plugin, parallelism_config))
        plugin = _one_plugin(gradient_accumulation_plugin, gradient_accumulation_steps)
        self._partial = PartialState(cpu, strategy, **handlers.get(InitProcessGroupKwargs).to_kwargs())
        earlier = AcceleratorState.current()
        asked = {"strategy": strategy, "precision": mixed_precision, "seed": seed, "deterministic": deterministic}
        chosen = self._choose(asked, plugin.num_steps, earlier)
        self._settle(chosen, handlers, cpu)
        said = gradient_accumulation_plugin or gradient_accumulation_steps
        self._keep_books(replace(plugin, num_steps=chosen.grad_accum_steps) if said or earlier is None else None)
        self._keep_checkpoints(project_dir, project_config)
        self._keep_tools(log_with, dynamo_backend, dynamo_plugin)
        self._keep_loader_settings(dataloader_config, rng_types)
        self.step_scheduler_with_optimizer = step_scheduler_with_optimizer
        self.step_scheduler_once = step_scheduler_once

    def __deepcopy__(self, memo: dict[int, Any]) -> "Accelerator":
        return self

    def _choose(self, asked: dict[str, Any], steps: int | None, earlier: AcceleratorState | None) -> choices.Choices:
        """Merge what the script asks for, what an earlier Accelerator decided, and what the launch says."""
        if earlier is not None:
            asked["strategy"] = asked["strategy"] or earlier.strategy_name
            asked["precision"] = asked["precision"] or earlier.mixed_precision
        warn = self._partial.is_main_process and earlier is None
        return choices.choose(self._partial.defaults, **asked, grad_accum_steps=steps, warn=warn)

    def _keep_books(self, plugin: GradientAccumulationPlugin | None) -> None:
        """Make what counts and remembers: accumulation, prepared objects. `plugin`: None leaves the shared state as it is."""
        self.gradient_state = GradientState(plugin)
        self._accumulation = Accumulation(self.gradient_state, self._strategy.no_sync)
        self._models, self._optimizers = models.Prepared(), models.Prepared()
        self._dataloaders, self._schedulers = models.Prepared(), models.Prepared()
        self._is_triggered = False

    def _keep_loader_settings(self, config: DataLoaderConfiguration | None, rng_types: Sequence[Any] | None) -> None:
        """Decide how loaders are prepared, and what ranks make the same before each epoch."""
        self.dataloader_config = config or DataLoaderConfiguration()
        self.rng_types = ["generator"] if rng_types is None else list(rng_types)
        self._before_epoch = synchronizer(self.rng_types)

    def _settle(self, chosen: choices.Choices, handlers: Handlers, cpu: bool) -> None:
        """Make the parts that depend on the settings; the first Accelerator of a process also seeds."""
        earlier = AcceleratorState.current()
        if earlier is not None:
            earlier.check(chosen.precision, cpu)
        self._precision = precision.make(chosen.precision, self._partial.kind, handlers)
        self._strategy = strategies.make(chosen.strategy, self._partial, handlers, self._precision.dtype)
        self._handlers = handlers
        self.state = AcceleratorState.settle(
            self._partial, chosen.precision, self._strategy.name, self._strategy.distributed_type
        )
        self.state.is_fsdp2 = self._strategy.capabilities.shards
        self.state.parallelism_config, self.state.device_mesh = self._strategy.parallelism, self._strategy.mesh
        if chosen.deterministic:
            rng.make_deterministic()
        if chosen.seed is not None and earlier is None:
            rng.set_seed(chosen.seed)
        if self._strategy.capabilities.owns_loss_scaling:
            self._precision.scaler = None
        self.scaler = self._precision.scaler

    # ---- prepare --------------------------------------------------------------------------------------------------

    def prepare(self, *objects: Any, device_placement: list[bool] | None = None) -> Any:
        """Models, optimizers, loaders and schedulers, ready for this run; in the order given, a single one by itself.

        Anything else passes through. What was prepared before comes back as it was then. `device_placement` says for each
        object whether it is put on the device. Raises ValueError when it has another length.
        """
        if device_placement is not None and len(device_placement) != len(objects):
            raise ValueError(
                f"prepare: device_placement has {len(device_placement)} entries for {len(objects)} objects"
            )
        self.state.require()
        placement = device_placement or [self.device_placement] * len(objects)
        ready = [self._prepare_one(item, place) for item, place in zip(objects, placement, strict=True)]
        ready = [self.prepare_scheduler(item) if isinstance(item, _SCHEDULER) else item for item in ready]
        self._strategy.complete()
        return ready[0] if len(ready) == 1 else tuple(ready)

    def _prepare_one(self, item: Any, place: bool) -> Any:
        """First pass: all but schedulers, which need the prepared optimizers."""
        if isinstance(item, nn.Module):
            return self.prepare_model(item, place)
        if isinstance(item, torch.optim.Optimizer):
            return self.prepare_optimizer(item, place)
        if isinstance(item, torch.utils.data.DataLoader):
            return self.prepare_data_loader(item, place)
        return item

    def prepare_model(
        self, model: nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> Any:
        """The model on the device, in this precision, wrapped for this strategy (not with `evaluation_mode`), compiled if that is on."""
        found = self._models.find(model)
        if found is not None:
            return found
        place = self.device_placement if device_placement is None else device_placement
        inner = self._strategy.unwrap(model)
        movable = evaluation_mode or self._strategy.capabilities.moves_models
        if place and movable and not models.has_several_places(inner):
            models.put(inner, self.device)
        self._precision.attach(inner)
        compiled = self._compilation.inside(model)
        wrapped = self._compilation.outside(compiled if evaluation_mode else self._strategy.wrap(compiled))
        self._models.add(model, wrapped)
        return wrapped

    def prepare_optimizer(
        self, optimizer: torch.optim.Optimizer, device_placement: bool | None = None
    ) -> AcceleratedOptimizer:
        """The optimizer, stepping when gradients are complete."""
        found: AcceleratedOptimizer | None = self._optimizers.find(optimizer)
        if found is not None:
            return found
        place = self.device_placement if device_placement is None else device_placement
        made = optimizer
        if not isinstance(made, AcceleratedOptimizer):
            made = AcceleratedOptimizer(optimizer, place, self.scaler)
        self._optimizers.add(optimizer, made)
        made.steps = self._strategy.adopt(made.optimizer)
        for scheduler in self._schedulers:
            scheduler.follow(made)
        return made

    def prepare_data_loader(
        self, data_loader: Any, device_placement: bool | None = None, *, shard: bool = True
    ) -> PreparedLoader:
        """This rank's share of a loader, on the device. `shard=False`: the loader serves this rank alone already.

        All ranks call it: those that shuffle agree on the order here.
        """
        found: PreparedLoader | None = self._dataloaders.find(data_loader)
        if found is not None:
            return found
        if type(data_loader) is PreparedLoader and data_loader.state is not None:
            if all(loader.progress is not data_loader.progress for loader in self._dataloaders):  # no view of one
                self._dataloaders.add(data_loader, data_loader)
            return data_loader
        if type(data_loader) is PreparedLoader:
            raise SettingError("this loader was made by skip_first_batches", hint="prepare first, then skip")
        place = self.device_placement if device_placement is None else device_placement
        made = prepare_data_loader(
            data_loader,
            rank=self._strategy.data_rank,
            size=self._strategy.data_size,
            device=self.device if place else None,
            config=self.dataloader_config,
            agree=lambda value: self.operations.broadcast_object_list([value])[0],
            state=self.gradient_state,
            handout=self.operations.handout if self._strategy.data_size == self.num_processes else None,
            shard=shard,
        )
        made.before_epoch = self._before_epoch
        made.move = self._strategy.mover(made.move)
        self._dataloaders.add(data_loader, made)
        self._strategy.note_loader(made.plan.batch_size)
        return made

    def prepare_scheduler(self, scheduler: Any) -> AcceleratedScheduler:
        """The scheduler, following the prepared optimizer that holds its own, or all prepared ones where none does."""
        found: AcceleratedScheduler | None = self._schedulers.find(scheduler)
        if found is not None:
            return found
        if isinstance(scheduler, AcceleratedScheduler):
            self._schedulers.add(scheduler, scheduler)
            return scheduler
        held = getattr(scheduler, "optimizer", None)
        prepared: list[AcceleratedOptimizer] = self._optimizers.objects
        mine = [optimizer for optimizer in prepared if held is optimizer or held is optimizer.optimizer]
        once = self.split_batches or self.step_scheduler_once
        made = AcceleratedScheduler(
            scheduler,
            mine or prepared,
            step_with_optimizer=self.step_scheduler_with_optimizer,
            split_batches=once,
            num_processes=self._strategy.data_size,
        )
        self._schedulers.add(scheduler, made)
        self._strategy.note_scheduler(scheduler, 1 if once else self._strategy.data_size)
        return made

    def unwrap_model(self, model: nn.Module, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True) -> Any:
        """Exactly the object that was given to prepare; see `models.unwrap` for the options."""
        return models.unwrap(
            self._models.given(model), keep_fp32_wrapper=keep_fp32_wrapper, keep_torch_compile=keep_torch_compile
        )


def _one_plugin(plugin: GradientAccumulationPlugin | None, steps: int | None) -> GradientAccumulationPlugin:
    """The plug-in in force; the plain argument is short for one. Raises SettingError when both say how many steps."""
    if plugin is None:
        return GradientAccumulationPlugin(num_steps=steps)
    if steps not in (None, 1):
        raise SettingError(
            f"gradient_accumulation_steps={steps} and a gradient_accumulation_plugin are both given",
            hint="give the number of steps to the plug-in",
        )
    return replace(plugin)
