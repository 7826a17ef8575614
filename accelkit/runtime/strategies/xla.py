"""Training on the XLA device. One process: the compiler divides each batch among all devices, and on demand every parameter too (SPMD).

Several processes: each has one device and a whole model; gradients are averaged where backward makes them. A step is written down as it
runs and computed where it ends: after an optimizer's step, and before each batch of a prepared loader.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import torch
from torch import nn

from accelkit.runtime import models, structure, xla
from accelkit.runtime.errors import SettingError, UnsupportedError
from accelkit.runtime.parallelism import ParallelismConfig
from accelkit.runtime.settings import Handlers, XlaKwargs
from accelkit.runtime.state import PartialState
from accelkit.runtime.strategies import fsdp_plugin, wrap_policy
from accelkit.runtime.strategies.base import NOTHING, Move, Strategy
from accelkit.runtime.strategies.fsdp_plugin import FullyShardedDataParallelPlugin

_AXIS: Final = "data"


class XlaStrategy(Strategy):
    """Training by torch_xla, on TPUs and, to try a script out, on the CPU."""

    name = "xla"

    def __init__(self, state: PartialState, handlers: Handlers, dtype: torch.dtype | None = None) -> None:
        super().__init__(state, handlers, dtype)
        if state.kind.strategy != self.name:
            raise SettingError(
                f"strategy='xla' needs the XLA device, and this process has taken {state.device}",
                hint=f"set {xla.VARIABLE}, or make this Accelerator before anything else that asks for the device",
            )
        self._plugin = _shards(handlers, state.defaults.settings.strategy_options)
        self._count = xla.count_devices()
        self._shares = self._count > 1
        """Whether batches are divided among devices."""
        self._is_paused = False
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._marked: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        """Optimizers whose states are divided as their parameters are."""
        if self._plugin is not None and state.num_processes > 1:
            raise UnsupportedError(
                "sharding on XLA is among the devices of one process, and this run has several",
                hint="start one process: it has all devices of the machine",
            )

    # ---- models, optimizers, batches ------------------------------------------------------------------------------

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model itself: divided among the devices where that is asked for; with rank 0's values where there are several ranks."""
        models.refuse_divided(model, self.name)
        if self.state.num_processes > 1:
            self.state.operations.broadcast([value for value in self._tensors(model).values() if value.numel()])
            for parameter in {id(one): one for one in model.parameters() if one.requires_grad}.values():
                parameter.register_post_accumulate_grad_hook(self._average)  # type: ignore[no-untyped-call]
        self._divide(model)
        for optimizer in self._optimizers:  # what they hold of parameters that have moved moves, too
            if optimizer.state:
                optimizer.load_state_dict(optimizer.state_dict())
        return model

    def _divide(self, model: nn.Module) -> None:
        """Lay every parameter out over the devices, along its longest dimension; blocks are gathered one after the other."""
        if self._plugin is None or self._count == 1:
            return
        from torch_xla.distributed.spmd import apply_backward_optimization_barrier

        for parameter in model.parameters():
            self._mark(parameter, parameter)
        for _, block in wrap_policy.choose(model, self._plugin):
            apply_backward_optimization_barrier(block)

    def _mark(self, tensor: torch.Tensor, parameter: torch.Tensor) -> None:
        """Divide a tensor as a parameter of its shape is."""
        if tensor.device.type == self.state.kind.name and parameter.dim():
            longest = max(range(parameter.dim()), key=lambda dim: parameter.shape[dim])
            _lay_out(tensor, [_AXIS if dim == longest else None for dim in range(parameter.dim())], self._count)

    def adopt(self, optimizer: torch.optim.Optimizer) -> None:
        """A step of this optimizer is one for the device, too."""
        if optimizer not in self._optimizers:
            self._optimizers.add(optimizer)
            optimizer.register_step_post_hook(self._after_step)

    def _after_step(self, optimizer: torch.optim.Optimizer, *args: Any) -> None:
        if optimizer not in self._marked:
            self._mark_states(optimizer)
            self._marked.add(optimizer)
        xla.end_step()

    def _mark_states(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide moments as their parameters are."""
        if self._plugin is None or self._count == 1:
            return
        for parameter, values in optimizer.state.items():
            for value in values.values():
                if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                    self._mark(value, parameter)

    def mover(self, move: Move | None) -> Move:
        """Compute the step before, then put the batch on the device; of each tensor every device gets some rows."""

        def begin(batch: Any) -> Any:
            xla.end_step()
            if move is None:
                return batch
            moved = move(batch)
            for leaf in structure.leaves(moved) if self._shares else ():
                self._deal(leaf)
            return moved

        return begin

    def _deal(self, leaf: Any) -> None:
        if isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.device.type == self.state.kind.name:
            _lay_out(leaf, [_AXIS, *[None] * (leaf.dim() - 1)], self._count)

    # ---- several processes ----------------------------------------------------------------------------------------

    def _average(self, parameter: torch.Tensor) -> None:
        """Average a gradient over the processes: part of the step as the device computes it."""
        if not self._is_paused and parameter.grad is not None:
            from torch_xla.core import xla_model

            xla_model.all_reduce(xla_model.REDUCE_SUM, [parameter.grad], scale=1 / self.state.num_processes)

    @contextmanager
    def _syncing(self, *, value: bool) -> Iterator[None]:
        before, self._is_paused = self._is_paused, not value
        try:
            yield
        finally:
            self._is_paused = before

    def no_sync(self, models: Iterable[nn.Module]) -> AbstractContextManager[Any]:
        """Leave gradients where they are."""
        return self._syncing(value=False) if self.state.num_processes > 1 else NOTHING

    def sync_in_backward(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Average gradients in this backward."""
        return self._syncing(value=True) if self.state.num_processes > 1 else NOTHING

    def join(
        self, models: Sequence[nn.Module], *, enable: bool, complete: Callable[[], None] | None = None
    ) -> AbstractContextManager[Any]:
        """Refused: a device without batches computes nothing, and the others would wait for it."""
        if enable and self.state.num_processes > 1:
            raise UnsupportedError(
                "join_uneven_inputs: XLA devices need as many batches each", hint="leave even_batches=True"
            )
        return NOTHING

    # ---- states: whole, and on the CPU, so that any other device loads them -----------------------------------------

    def _tensors(self, model: nn.Module) -> dict[str, Any]:
        return super().live_state(model)

    def live_state(self, model: nn.Module) -> dict[str, Any]:
        """The state as copies on the CPU; names that share a tensor share its copy."""
        state: dict[str, Any] = xla.on_cpu(self._tensors(model))
        return state

    def live_optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """The state as copies on the CPU."""
        state = super().live_optimizer_state(optimizer)
        return {**state, "state": xla.on_cpu(state.get("state", {}))}

    def load_model_state(self, model: nn.Module, state: Mapping[str, Any], *, strict: bool) -> None:
        """Copy a state to the device, where parameters stay divided as they are."""
        super().load_model_state(model, state, strict=strict)
        xla.end_step()

    def load_optimizer_state(self, optimizer: Any, state: dict[str, Any]) -> None:
        """Copy a state to the device, divided as the parameters are."""
        super().load_optimizer_state(optimizer, state)
        self._mark_states(getattr(optimizer, "optimizer", optimizer))
        xla.end_step()


def _shards(handlers: Handlers, launched: Mapping[str, Any]) -> FullyShardedDataParallelPlugin | None:
    """How parameters are divided; None: they are not. Raises UnsupportedError for what XLA has no word for."""
    plugin = handlers.given(FullyShardedDataParallelPlugin)
    asked = (handlers.given(XlaKwargs) or XlaKwargs(**launched.get("xla", {}))).shard
    if plugin is None and not asked:
        return None
    found = fsdp_plugin.merged(plugin, launched.get("fsdp", {}))
    refused = [name for name in ("cpu_offload", "activation_checkpointing", "ignored_modules") if getattr(found, name)]
    if handlers.given(ParallelismConfig) is not None:
        refused.append("parallelism_config")
    if refused:
        raise UnsupportedError(
            f"{', '.join(refused)}: strategy 'xla' does not do that",
            hint="leave it out: parameters are divided among the devices of the process, and the compiler orders their exchange",
        )
    return found


def _is_divided(tensor: torch.Tensor) -> bool:
    """Whether each device holds a part of a tensor."""
    import torch_xla

    return "devices=" in torch_xla._XLAC._get_xla_sharding_spec(tensor)  # noqa: SLF001  (shown nowhere else)


def _lay_out(tensor: torch.Tensor, axes: Sequence[str | None], count: int) -> None:
    """Lay a tensor out over the devices of the process, unless it is laid out already."""
    if _is_divided(tensor):
        return
    from torch_xla.distributed import spmd

    spmd.clear_sharding(tensor)
    spmd.mark_sharding(tensor, spmd.Mesh(range(count), (count,), (_AXIS,)), tuple(axes))
