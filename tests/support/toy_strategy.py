"""A strategy in one file: gradients are averaged by hand when a window is complete. It passes the suite that every strategy passes."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from accelkit.runtime.settings import Handlers
from accelkit.runtime.state import PartialState
from accelkit.runtime.strategies.base import Strategy


class ToyStrategy(Strategy):
    """Averages each gradient as soon as backward has made it."""

    name = "toy"

    def __init__(self, state: PartialState, handlers: Handlers, dtype: torch.dtype | None = None) -> None:
        super().__init__(state, handlers, dtype)
        state.start_group()
        self._is_paused = False

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model itself, with rank 0's values and a hook on each parameter."""
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, 0)
        for parameter in {id(one): one for one in model.parameters() if one.requires_grad}.values():
            parameter.register_post_accumulate_grad_hook(self._average)
        return model

    def _average(self, parameter: torch.Tensor) -> None:
        if not self._is_paused and parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= self.state.num_processes

    @contextmanager
    def no_sync(self, models: Iterable[nn.Module]) -> Iterator[Any]:
        """Leave gradients where they are."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False
