"""The prepared learning-rate scheduler: moves as often as the loop over all data would have moved it."""

from collections.abc import Sequence
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from accelkit.runtime.gradients import GradientState
from accelkit.runtime.optimizer import AcceleratedOptimizer
from accelkit.runtime.state import PartialState


class AcceleratedScheduler:
    """Composes the script's scheduler.

    Tied to its optimizers (the default), `step` does nothing while micro-batches are accumulated or when an optimizer's step
    was skipped. Otherwise it moves once per rank, because a schedule is written for the loop of one process over all
    batches, and each step of n ranks is n of those; with `split_batches` once, and so a schedule that says `moves_once`.
    It never moves past the scheduler's `total_steps`. A schedule that follows a metric moves once at every call. All other
    attributes are the inner scheduler's.
    """

    def __init__(
        self,
        scheduler: Any,
        optimizers: AcceleratedOptimizer | Sequence[AcceleratedOptimizer],
        step_with_optimizer: bool = True,
        split_batches: bool = False,
        num_processes: int | None = None,
    ) -> None:
        """Args: `optimizers`, those it is tied to; `num_processes`, ranks of the run (None: as many as there are)."""
        self.scheduler = scheduler
        self.optimizers = [optimizers] if isinstance(optimizers, AcceleratedOptimizer) else list(optimizers)
        self.step_with_optimizer = step_with_optimizer and not isinstance(scheduler, ReduceLROnPlateau)
        self.gradient_state = GradientState()
        once = split_batches or getattr(scheduler, "moves_once", False)
        self._repeats = 1 if once else num_processes or PartialState().num_processes
        self._total = getattr(scheduler, "total_steps", None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "scheduler" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.scheduler, name)

    def follow(self, optimizer: AcceleratedOptimizer) -> None:
        """Be tied to an optimizer that was prepared later, if that is the one of the inner scheduler."""
        if getattr(self.scheduler, "optimizer", None) in (optimizer, optimizer.optimizer):
            self.optimizers = [optimizer]

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Move the schedule on, where that is due; arguments go to the inner scheduler."""
        if not self.step_with_optimizer:
            self.scheduler.step(*args, **kwargs)
            return
        if not self.gradient_state.sync_gradients:
            if self.gradient_state.adjust_scheduler and hasattr(self.scheduler, "_step_count"):
                self.scheduler._step_count += 1  # noqa: SLF001  (torch warns about the order of calls by it)
            return
        for optimizer in self.optimizers:
            if optimizer.step_was_skipped:
                return
        for _ in range(self._repeats):
            if self._total is not None and self.scheduler.last_epoch >= self._total:
                return
            self.scheduler.step(*args, **kwargs)

    def get_last_lr(self) -> Any:
        """The rates now in force."""
        return self.scheduler.get_last_lr()

    def get_lr(self) -> Any:
        """The rates that the schedule computes."""
        return self.scheduler.get_lr()

    def state_dict(self) -> dict[str, Any]:
        """The inner scheduler's state."""
        found: dict[str, Any] = self.scheduler.state_dict()
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state into the inner scheduler."""
        self.scheduler.load_state_dict(state_dict)

    def print_lr(self, *args: Any, **kwargs: Any) -> Any:
        """Print the rates, where the inner scheduler can."""
        return self.scheduler.print_lr(*args, **kwargs)
