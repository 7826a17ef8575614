"""Comet."""

from collections.abc import Mapping
from typing import Any

from accelkit.runtime.errors import SettingError
from accelkit.runtime.tracking.base import LibraryTracker, on_main_process
from accelkit.runtime.tracking.values import nested_config


class CometMLTracker(LibraryTracker):
    """An experiment of the project `run_name`; `kwargs` are those of `comet_ml.start`. `tracker` is the experiment."""

    name = "comet_ml"

    @on_main_process
    def start(self) -> None:
        """Begin the experiment."""
        import comet_ml

        self.run = comet_ml.start(project_name=self.run_name, **self.init_kwargs)

    @on_main_process
    def store_init_configuration(self, values: Any) -> None:
        """Keep the configuration as parameters."""
        self.run.log_parameters(nested_config(values))

    @on_main_process
    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record numbers and dicts of numbers as metrics, texts as other values; `kwargs` are those of the experiment's function."""
        if step is not None:
            self.run.set_step(step)
        for name, value in values.items():
            if isinstance(value, (int, float)):
                self.run.log_metric(name, value, step=step, **kwargs)
            elif isinstance(value, str):
                self.run.log_other(name, value, **kwargs)
            elif isinstance(value, Mapping):
                self.run.log_metrics(dict(value), prefix=name, step=step, **kwargs)
            else:
                raise SettingError(
                    f"tracker 'comet_ml': {name} is of type {type(value).__name__}",
                    hint="log numbers, texts and dicts of numbers; all else by get_tracker('comet_ml', unwrap=True)",
                )

    @on_main_process
    def finish(self) -> None:
        """End the experiment."""
        if self.run is not None:
            self.run.end()
