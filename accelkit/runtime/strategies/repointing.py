"""Optimizers that were made before their model was sharded: their parameters become the sharded ones."""

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from accelkit.runtime import sharded


class Replacements:
    """Which parameter took the place of which, and the optimizers that must know."""

    def __init__(self) -> None:
        self._new: Any = WeakIdKeyDictionary()
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def note(self, before: Mapping[str, nn.Parameter], model: nn.Module) -> None:
        """Remember what became of the parameters of a model, and tell the optimizers that are known."""
        after = dict(model.named_parameters(remove_duplicate=False))
        for name, parameter in before.items():
            if after[name] is not parameter:
                self._new[parameter] = after[name]
        for optimizer in list(self._optimizers):
            self._repoint(optimizer)

    def adopt(self, optimizer: torch.optim.Optimizer) -> None:
        """Give an optimizer the parameters that are in force, now and after models that are prepared later."""
        self._optimizers.add(optimizer)
        self._repoint(optimizer)

    def _repoint(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            for old in group["params"]:
                if old in self._new and old in optimizer.state:
                    optimizer.state[self._new[old]] = _like(optimizer.state.pop(old), self._new[old])
            group["params"] = [self._new.get(old, old) for old in group["params"]]


def _like(state: Any, parameter: Any) -> Any:
    """An optimizer's state of a parameter, laid out as that is."""
    if not isinstance(state, dict) or not sharded.is_sharded(parameter):
        return state
    return {
        name: sharded.as_layout(value, parameter)
        if isinstance(value, torch.Tensor) and value.shape == parameter.shape
        else value
        for name, value in state.items()
    }
