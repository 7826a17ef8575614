"""The schedule that a DummyScheduler stands for under DeepSpeed: the config's, or one that the script makes."""

import math
from dataclasses import dataclass
from typing import Any

from accelkit.runtime.errors import SettingError
from accelkit.runtime.strategies.deepspeed_plugin import DummyScheduler


@dataclass(frozen=True)
class Noted:
    """A stand-in that was prepared."""

    scheduler: DummyScheduler
    repeats: int
    """Steps of one process's loop that a step of this run is."""

    def is_of(self, optimizer: Any) -> bool:
        """Whether it was made for this optimizer."""
        return optimizer is not None and self.scheduler.optimizer is optimizer

    def values(self) -> dict[str, Any]:
        """What fills "auto" in the config's schedule, which counts steps of this run. A warm-up lasts one step or more."""
        found: dict[str, Any] = {
            "warmup_min_lr": 0.0,
            "warmup_max_lr": self.scheduler.optimizer.defaults.get("lr"),
            "warmup_num_steps": max(1, math.ceil(self.scheduler.warmup_num_steps / self.repeats)),
        }
        if self.scheduler.total_num_steps is not None:
            found["total_num_steps"] = math.ceil(self.scheduler.total_num_steps / self.repeats)
        return found

    def fill(self, engine: Any, optimizer: Any) -> None:
        """Give the stand-in its schedule; the engine, which would move its own, no longer does.

        Raises SettingError where there is none, or two.
        """
        make, described = self.scheduler.lr_scheduler_callable, engine.lr_scheduler
        if (make is None) == (described is None):
            raise SettingError(
                "DummyScheduler stands for no schedule"
                if make is None
                else "DummyScheduler has lr_scheduler_callable, and DeepSpeed's config has a schedule, too",
                hint='describe one in DeepSpeed\'s config ("scheduler"), or give lr_scheduler_callable: one of the two',
            )
        self.scheduler.become(described if make is None else make(optimizer))
        engine.lr_scheduler = None
