"""DVCLive."""

from collections.abc import Mapping
from typing import Any

from accelkit.runtime.errors import SettingError
from accelkit.runtime.tracking.base import LibraryTracker, on_main_process
from accelkit.runtime.tracking.values import flat, nested_config


class DVCLiveTracker(LibraryTracker):
    """A `dvclive.Live`: the one given as `live`, or one made with `kwargs`. `tracker` is that object."""

    name = "dvclive"

    def __init__(self, run_name: str | None = None, live: Any = None, **kwargs: Any) -> None:
        super().__init__(run_name, **kwargs)
        self.run = live

    @on_main_process
    def start(self) -> None:
        """Make the object, unless one was given."""
        from dvclive import Live

        if self.run is None:
            self.run = Live(**self.init_kwargs)

    @on_main_process
    def store_init_configuration(self, values: Any) -> None:
        """Keep the configuration as parameters."""
        self.run.log_params(nested_config(values))

    @on_main_process
    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record numbers and texts, then go on to the next step. `kwargs` are those of `Live.log_metric`.

        Raises SettingError for anything else.
        """
        if step is not None:
            self.run.step = step
        for name, value in flat(values).items():
            if not isinstance(value, (int, float, str)):
                raise SettingError(
                    f"tracker 'dvclive': {name} is of type {type(value).__name__}",
                    hint="log numbers and texts; images by get_tracker('dvclive', unwrap=True).log_image(...)",
                )
            self.run.log_metric(name, value, **kwargs)
        self.run.next_step()

    @on_main_process
    def finish(self) -> None:
        """End it."""
        if self.run is not None:
            self.run.end()
