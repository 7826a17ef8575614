"""One process: nothing is wrapped, nothing is exchanged."""

import torch
from torch import nn

from accelkit.runtime.errors import UnsupportedError
from accelkit.runtime.settings import Handlers
from accelkit.runtime.state import PartialState
from accelkit.runtime.strategies.base import Strategy


class SingleStrategy(Strategy):
    """Training in one process."""

    name = "single"

    def __init__(self, state: PartialState, handlers: Handlers, dtype: torch.dtype | None = None) -> None:
        if state.num_processes > 1:
            raise UnsupportedError(
                f"strategy 'single' is for one rank, and this run has {state.num_processes}",
                hint="use strategy 'auto' or 'ddp', or start one rank",
            )
        super().__init__(state, handlers, dtype)

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model itself."""
        return model
