"""The prepared optimizer: steps when gradients are complete, and knows when a step was skipped."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.amp.grad_scaler import OptState

from accelkit.runtime import structure
from accelkit.runtime.errors import UnsupportedError
from accelkit.runtime.gradients import GradientState
from accelkit.runtime.precision import LossScaler
from accelkit.runtime.state import PartialState


class AcceleratedOptimizer(torch.optim.Optimizer):
    """Composes the script's optimizer; `isinstance(..., torch.optim.Optimizer)` holds.

    `step` and `zero_grad` do nothing while micro-batches are being accumulated. All other attributes are the inner optimizer's.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        device_placement: bool = True,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        """Args: `device_placement`, whether state that is there already moves to this rank's device; `scaler`, for fp16."""
        self.optimizer = optimizer
        self.scaler = scaler
        self.gradient_state = GradientState()
        self._takes_set_to_none = "set_to_none" in inspect.signature(optimizer.zero_grad).parameters
        self._was_skipped = False
        self._has_stepped = False
        self._skips_by_itself = bool(getattr(optimizer, "_step_supports_amp_scaling", False))
        """Whether the optimizer's kernel looks for overflows, so that its `step` is called in any case."""
        self._overflows: tuple[torch.Tensor, ...] = ()
        self.steps: Any = None
        """What steps in the optimizer's place (`strategies.base.Steps`); None: it does itself."""
        if scaler is not None:
            optimizer.register_step_post_hook(self._note_step)
        if device_placement and optimizer.state:
            optimizer.load_state_dict(structure.move(optimizer.state_dict(), PartialState().device))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "optimizer" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (self.__dict__.copy(),)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self.__reduce__()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.optimizer!r})"

    @property
    def state(self) -> Any:
        """The inner optimizer's state."""
        return self.optimizer.state

    @state.setter
    def state(self, value: Any) -> None:
        self.optimizer.state = value

    @property
    def param_groups(self) -> Any:
        """The inner optimizer's groups of parameters."""
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, value: Any) -> None:
        self.optimizer.param_groups = value

    @property
    def defaults(self) -> Any:
        """The inner optimizer's defaults."""
        return self.optimizer.defaults

    @defaults.setter
    def defaults(self, value: Any) -> None:
        self.optimizer.defaults = value

    @property
    def step_was_skipped(self) -> bool:
        """Whether the last step that was due did not happen because a gradient overflowed."""
        if self._overflows:  # asked for only now: the answer lies on the device
            self._was_skipped = any(bool(overflow) for overflow in self._overflows)
            self._overflows = ()
        return self._was_skipped

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the inner optimizer."""
        self.optimizer.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """The inner optimizer's state, as its class saves it."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state into the inner optimizer."""
        self.optimizer.load_state_dict(state_dict)

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Clear gradients, when this step completes a window. Raises ValueError where the inner optimizer lacks the argument."""
        if not self._takes_set_to_none and set_to_none is not None:
            raise ValueError(f"`set_to_none` for zero_grad is not supported by {type(self.optimizer).__name__}")
        if not self.gradient_state.sync_gradients:
            return
        if isinstance(self.scaler, LossScaler):
            self.scaler.drop(self.optimizer)
        if self.steps is not None:
            self.steps.zero_grad()
        elif self._takes_set_to_none:
            self.optimizer.zero_grad(set_to_none=True if set_to_none is None else set_to_none)
        else:
            self.optimizer.zero_grad()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step, when this step completes a window. Without a scaler, returns what the inner optimizer returns."""
        if not self.gradient_state.sync_gradients:
            self._was_skipped, self._overflows = False, ()
            return None
        if self.steps is not None:
            return self._step_elsewhere(closure)
        if self.scaler is None or (closure is None and not self._has_gradients()):
            self._was_skipped, self._overflows = False, ()
            return self.optimizer.step() if closure is None else self.optimizer.step(closure)
        self._has_stepped = False
        loss = self.scaler.step(self.optimizer, *(() if closure is None else (closure,)))
        if self._skips_by_itself:
            self._overflows = tuple(self.scaler._found_inf_per_device(self.optimizer).values())  # noqa: SLF001
        if not isinstance(self.scaler, LossScaler):
            self.scaler.update()
        self._was_skipped = not self._has_stepped
        return loss

    def _step_elsewhere(self, closure: Callable[[], Any] | None) -> Any:
        """Let the strategy step. Raises UnsupportedError for a closure, which its engine would not call."""
        if closure is not None:
            raise UnsupportedError(
                "optimizer.step(closure): this strategy's engine steps without one", hint="use strategy 'ddp' or 'fsdp'"
            )
        self._was_skipped = not self.steps.step()

    def _has_gradients(self) -> bool:
        """Whether there is anything to look for overflows in: a scaler refuses to step without."""
        return any(parameter.grad is not None for group in self.param_groups for parameter in group["params"])

    def unscale(self) -> None:
        """Bring gradients back to their true size, once per step; nothing without a scaler, and after the step."""
        if self.scaler is None:
            return
        if isinstance(self.scaler, LossScaler):
            self.scaler.unscale_once(self.optimizer)
            return
        stage = self.scaler._per_optimizer_states[id(self.optimizer)]["stage"]  # noqa: SLF001  (until the scaler updates)
        if stage is not OptState.UNSCALED:
            self.scaler.unscale_(self.optimizer)

    def train(self) -> None:
        """Switch an optimizer that has modes to training."""
        self._switch("train")

    def eval(self) -> None:
        """Switch an optimizer that has modes to evaluation."""
        self._switch("eval")

    def _switch(self, mode: str) -> None:
        switch = getattr(self.optimizer, mode, None)
        if callable(switch):
            switch()

    def _note_step(self, *args: Any) -> None:
        self._has_stepped = True


def _revive(attributes: dict[str, Any]) -> AcceleratedOptimizer:
    made = AcceleratedOptimizer.__new__(AcceleratedOptimizer)
    made.__dict__.update(attributes)
    return made
