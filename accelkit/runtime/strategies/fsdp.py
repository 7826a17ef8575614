"""Sharded data parallel: each rank holds a part of every parameter, gradient and optimizer state (torch's `fully_shard`).

The same strategy serves copies of a sharded model and layers divided among ranks: they are axes of the one mesh.
"""

import itertools
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

from accelkit.runtime import models, sharded
from accelkit.runtime.errors import SettingError, UnsupportedError
from accelkit.runtime.parallelism import ParallelismConfig
from accelkit.runtime.settings import DistributedType, Handlers
from accelkit.runtime.state import PartialState
from accelkit.runtime.strategies import fsdp_plugin, materialize, tensor_parallel, wrap_policy
from accelkit.runtime.strategies.base import NOTHING, Capabilities, Strategy
from accelkit.runtime.strategies.fsdp_plugin import FullyShardedDataParallelPlugin
from accelkit.runtime.strategies.repointing import Replacements


class FSDPStrategy(Strategy):
    """Training with `fully_shard`, on CPU and on CUDA."""

    name = "fsdp"
    capabilities = Capabilities(moves_models=False, shards=True)

    def __init__(self, state: PartialState, handlers: Handlers, dtype: torch.dtype | None = None) -> None:
        super().__init__(state, handlers, dtype)
        state.start_group()
        launched = state.defaults.settings.strategy_options
        self.plugin = fsdp_plugin.merged(handlers.given(FullyShardedDataParallelPlugin), launched.get("fsdp", {}))
        self.plugin.warn_of_obsolete()
        sizes = launched.get("parallelism") or {"dp_shard_size": state.num_processes}
        self.parallelism = handlers.given(ParallelismConfig) or ParallelismConfig(**sizes)
        self.parallelism.fit(state.num_processes)
        if self.parallelism.cp_size > 1:
            raise UnsupportedError(
                f"cp_size={self.parallelism.cp_size}: torch divides sequences for its CUDA attention kernels only",
                hint="give these ranks to dp_shard_size or tp_size",
            )
        self.mesh = self.parallelism.build_device_mesh(state.kind.name)
        self._replacements = Replacements()
        self._syncs: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()

    @property
    def distributed_type(self) -> DistributedType:
        """How scripts know this way of training."""
        return DistributedType.FSDP

    @property
    def saves_shards(self) -> bool:
        """Whether each rank writes its part into checkpoints."""
        return str(self.plugin.state_dict_type) != "FULL_STATE_DICT"

    # ---- models and optimizers ------------------------------------------------------------------------------------

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model itself, its parameters sharded in place; rank 0's values are everybody's.

        A model on the meta device on all ranks stays there until its values are loaded (`load_checkpoint_in_model`); one that only
        rank 0 has is filled from there.
        """
        from torch.distributed.fsdp import FSDPModule

        if isinstance(model, FSDPModule) or not any(True for _ in model.parameters()):
            return model
        models.refuse_divided(model, self.name)
        if self.dtype is not None:
            _to_full_precision(model)
        source = materialize.find(model, self.state)
        before = dict(model.named_parameters(remove_duplicate=False))
        materialize.begin(model, source, self._home)
        if self.parallelism.tp_size > 1:
            tensor_parallel.apply(model, self.mesh["tp"], self.parallelism)
        self._shard(model)
        materialize.complete(model, source, self._home, self.plugin.param_init_fn)
        self._replacements.note(before, model)
        return model

    @property
    def _home(self) -> torch.device:
        """Where parameters are between uses."""
        return torch.device("cpu") if self.plugin.cpu_offload else self.state.device

    def _shard(self, model: nn.Module) -> None:
        from torch.distributed.fsdp import fully_shard

        blocks = wrap_policy.choose(model, self.plugin)
        if self.plugin.activation_checkpointing:
            _recompute(blocks)
        ignored = wrap_policy.ignored(model, self.plugin.ignored_modules)
        if any(parameter.requires_grad for parameter in ignored):
            warnings.warn(
                "ignored_modules: their gradients are each rank's own; nothing makes them equal", stacklevel=4
            )
        settings = {**self._settings(), "ignored_params": ignored or None}
        for _, block in reversed(blocks):
            fully_shard(block, **settings)
        fully_shard(model, **settings)
        self._prefetch([block for _, block in blocks])

    def _settings(self) -> dict[str, Any]:
        """Arguments of `fully_shard`."""
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

        axes = ("dp_replicate", "dp_shard") if self.parallelism.dp_replicate_size > 1 else ("dp_shard",)
        policy = fsdp_plugin.dtypes(self.plugin.mixed_precision_policy, self.dtype)
        settings: dict[str, Any] = {"mesh": self.mesh[axes], "mp_policy": MixedPrecisionPolicy(**policy)}
        if self.plugin.reshard_after_forward is not None:
            settings["reshard_after_forward"] = self.plugin.reshard_after_forward
        offload = self.plugin.cpu_offload
        if offload:
            own = CPUOffloadPolicy(pin_memory=self.state.kind.indexed)
            settings["offload_policy"] = own if isinstance(offload, bool) else offload
        return settings

    def _prefetch(self, blocks: Sequence[Any]) -> None:
        """Gather the next block's parameters during a block's forward or backward, where that is asked for."""
        for block, following in itertools.pairwise(blocks):
            if self.plugin.forward_prefetch:
                block.set_modules_to_forward_prefetch([following])
            if self.plugin.backward_prefetch == "BACKWARD_PRE":
                following.set_modules_to_backward_prefetch([block])

    def adopt(self, optimizer: torch.optim.Optimizer) -> None:
        """Give the optimizer the sharded parameters, whether its model was sharded before or will be later."""
        self._replacements.adopt(optimizer)

    # ---- the step -------------------------------------------------------------------------------------------------

    def no_sync(self, models: Iterable[nn.Module]) -> AbstractContextManager[Any]:
        """Keep whole gradients on each rank; the next backward outside sums and divides them."""
        found = _sharded_roots(models)
        return self._syncing(found, value=False) if found else NOTHING

    def sync_in_backward(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Sum and divide gradients in this backward."""
        found = _sharded_roots([model])
        return self._syncing(found, value=True) if found else NOTHING

    @contextmanager
    def _syncing(self, roots: Sequence[Any], *, value: bool) -> Iterator[None]:
        before = [self._syncs.get(root, True) for root in roots]
        try:
            self._set_syncs(roots, [value] * len(roots))
            yield
        finally:
            self._set_syncs(roots, before)

    def _set_syncs(self, roots: Sequence[Any], values: Sequence[bool]) -> None:
        for root, value in zip(roots, values, strict=True):
            root.set_requires_gradient_sync(value)
            self._syncs[root] = value

    def join(
        self, models: Sequence[nn.Module], *, enable: bool, complete: Callable[[], None] | None = None
    ) -> AbstractContextManager[Any]:
        """Refused: a rank without batches cannot take part in gathering parameters."""
        if enable and self.state.num_processes > 1 and _sharded_roots(models):
            raise UnsupportedError(
                "join_uneven_inputs: ranks of a sharded model need as many batches each",
                hint="leave even_batches=True, or use strategy 'ddp'",
            )
        return NOTHING

    def grad_norm(self, parameters: Sequence[torch.Tensor], norm_type: float) -> torch.Tensor:
        """The norm of the whole gradients, the same on every rank. While gradients are not synchronised there are none: zero."""
        return sharded.total_norm(sharded.gradients(parameters), norm_type)

    def clip_grad_norm(self, parameters: Sequence[torch.Tensor], max_norm: float, norm_type: float) -> torch.Tensor:
        """Scale the parts of gradients by the norm of the whole."""
        norm = self.grad_norm(parameters, norm_type)
        sharded.scale(sharded.gradients(parameters), max_norm, norm)
        return norm

    def clip_grad_value(self, parameters: Sequence[torch.Tensor], clip_value: float) -> None:
        """Limit each element of the gradients to [-clip_value, clip_value]."""
        for part in map(sharded.local, sharded.gradients(parameters)):
            part.clamp_(-clip_value, clip_value)

    # ---- states ---------------------------------------------------------------------------------------------------

    def model_state(self, model: nn.Module, *, keep: bool = True) -> dict[str, Any]:
        """The whole state, gathered a tensor at a time to the CPU of ranks that `keep` it."""
        whole: dict[str, Any] = {}
        state = self.live_state(model)
        first = _first_names(models.unwrap(model, keep_torch_compile=False))
        for name, value in state.items():
            kept = first.get(name, name)
            whole[name] = whole[kept] if kept in whole else sharded.gathered(value, keep=keep)
        return whole if keep else {}

    def load_model_state(self, model: nn.Module, state: Mapping[str, Any], *, strict: bool) -> None:
        """Load a state, whole or in parts."""
        live = self.live_state(model)
        fitted = {name: _fitted(value, live.get(name)) for name, value in state.items()}
        models.unwrap(model, keep_torch_compile=False).load_state_dict(fitted, strict=strict)

    def optimizer_state(self, optimizer: Any, *, keep: bool = True) -> dict[str, Any]:
        """The whole state, gathered to the CPU of ranks that `keep` it."""
        found = self.live_optimizer_state(optimizer)
        state = {
            key: {name: sharded.gathered(value, keep=keep) for name, value in values.items()}
            for key, values in found["state"].items()
        }
        return {**found, "state": state} if keep else {}


def _sharded_roots(given: Iterable[nn.Module]) -> list[Any]:
    return [model for model in given if hasattr(model, "set_requires_gradient_sync")]


def _first_names(model: nn.Module) -> dict[str, str]:
    """Of names that share a parameter, the first one."""
    firsts: dict[int, str] = {}
    return {name: firsts.setdefault(id(one), name) for name, one in model.named_parameters(remove_duplicate=False)}


def _fitted(value: Any, live: Any) -> Any:
    """A whole tensor as the part that this rank holds; anything else as it is."""
    is_whole = isinstance(value, torch.Tensor) and not sharded.is_sharded(value)
    return sharded.as_layout(value, live) if is_whole and sharded.is_sharded(live) else value


def _recompute(blocks: Sequence[tuple[str, nn.Module]]) -> None:
    """Let blocks compute their forward again in backward. Hooks do it: names and classes stay."""
    from torch.distributed._composable.checkpoint_activation import checkpoint

    if not blocks:
        raise SettingError(
            "activation_checkpointing: no module is wrapped by itself",
            hint="say which are by auto_wrap_policy: transformer_based_wrap, size_based_wrap or name_based_wrap",
        )
    inner = [name for name, _ in blocks]
    for name, block in blocks:
        if not any(other.startswith(f"{name}.") for other in inner):  # the innermost: nothing is recomputed twice
            checkpoint(block)


def _to_full_precision(model: nn.Module) -> None:
    """Under mixed precision what is trained is kept in float32: small updates would be lost in half a word."""
    found = [
        (name, parameter)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.dtype in (torch.float16, torch.bfloat16)
    ]
    for _, parameter in found:
        parameter.data = parameter.data.float()
    if found:
        names = ", ".join(name for name, _ in found[:3]) + (", ..." if len(found) > 3 else "")
        warnings.warn(f"mixed precision: {len(found)} trained parameters become float32 ({names})", stacklevel=4)
