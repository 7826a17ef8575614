"""Data parallel: every rank holds the whole model, gradients are averaged in backward (torch's DistributedDataParallel)."""

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from accelkit.runtime import models
from accelkit.runtime.settings import DistributedDataParallelKwargs, Handlers
from accelkit.runtime.state import PartialState
from accelkit.runtime.strategies import comm_hooks, joining
from accelkit.runtime.strategies.base import NOTHING, Strategy


class _Modules(weakref.WeakSet[nn.Module]):
    """Modules, for as long as they live; pickled, none."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _Modules, ()


class DDPStrategy(Strategy):
    """Training with DistributedDataParallel, on CPU and on CUDA."""

    name = "ddp"

    def __init__(self, state: PartialState, handlers: Handlers, dtype: torch.dtype | None = None) -> None:
        super().__init__(state, handlers, dtype)
        state.start_group()
        self._begun = _Modules()
        launched = state.defaults.settings.strategy_options.get("ddp", {})
        self._settings = handlers.given(DistributedDataParallelKwargs) or DistributedDataParallelKwargs(**launched)
        self._arguments = self._settings.to_kwargs()
        if state.kind.indexed:
            self._arguments["device_ids"] = [state.device.index]

    def wrap(self, model: nn.Module) -> nn.Module:
        """A DistributedDataParallel around the model; the model itself when nothing in it is trained."""
        if isinstance(models.engine(model), DistributedDataParallel):
            return model
        if not any(parameter.requires_grad for parameter in model.parameters()):
            return model
        models.refuse_divided(model, self.name)
        wrapped = DistributedDataParallel(model, **self._arguments)
        comm_hooks.register(wrapped, self._settings)
        return wrapped

    def unwrap(self, model: nn.Module) -> nn.Module:
        """The model inside."""
        engine = models.engine(model)
        inner: nn.Module = engine.module if isinstance(engine, DistributedDataParallel) else model
        return inner

    def no_sync(self, models: Iterable[nn.Module]) -> AbstractContextManager[Any]:
        """Leave gradients of the wrapped models where they are."""
        wrapped = [model for model in models if isinstance(model, DistributedDataParallel) and not self._begins(model)]
        if len(wrapped) == 1:
            return wrapped[0].no_sync()
        stack = ExitStack()
        for model in wrapped:
            stack.enter_context(model.no_sync())
        return stack if wrapped else NOTHING

    def _begins(self, model: DistributedDataParallel) -> bool:
        """Whether this is the first backward of a static graph: torch learns the graph while it synchronises, which changes no sum."""
        begins = model.static_graph and model not in self._begun
        self._begun.add(model)
        return begins

    @contextmanager
    def sync_in_backward(self, model: nn.Module) -> Iterator[None]:
        """Arm the reducer for the coming backward, as a forward outside `no_sync` would have done."""
        if not isinstance(model, DistributedDataParallel):
            yield
            return
        before = model.require_backward_grad_sync
        model.require_backward_grad_sync = True
        model.reducer.prepare_for_backward([])
        try:
            yield
        finally:
            model.require_backward_grad_sync = before

    def join(
        self, models: Sequence[nn.Module], *, enable: bool, complete: Callable[[], None] | None = None
    ) -> AbstractContextManager[Any]:
        """Ranks that are out of batches answer the collectives of those that are not."""
        wrapped = [model for model in models if isinstance(model, DistributedDataParallel)]
        return joining.join(wrapped, complete, enable=enable) if wrapped else NOTHING
