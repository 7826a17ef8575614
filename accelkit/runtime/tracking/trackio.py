"""Trackio."""

from collections.abc import Mapping
from typing import Any

from accelkit.runtime.tracking.base import LibraryTracker, on_main_process
from accelkit.runtime.tracking.values import nested_config


class TrackioTracker(LibraryTracker):
    """A run of the project `run_name`; `kwargs` are those of `trackio.init`. `tracker` is the run."""

    name = "trackio"

    @on_main_process
    def start(self) -> None:
        """Begin the run."""
        import trackio

        self.run = trackio.init(project=self.run_name, **self.init_kwargs)

    @on_main_process
    def store_init_configuration(self, values: Any) -> None:
        """Put the configuration into the run's."""
        self.run.config.update(nested_config(values))

    @on_main_process
    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record values: whatever Trackio shows. `kwargs` are those of `run.log`."""
        self.run.log(dict(values), step=step, **kwargs)

    @on_main_process
    def finish(self) -> None:
        """End the run."""
        if self.run is not None:
            self.run.finish()
