"""SwanLab."""

from collections.abc import Mapping, Sequence
from typing import Any

from accelkit.runtime.tracking.base import LibraryTracker, on_main_process
from accelkit.runtime.tracking.values import flat, nested_config


class SwanLabTracker(LibraryTracker):
    """A run of the project `run_name`; `kwargs` are those of `swanlab.init`. `tracker` is the run."""

    name = "swanlab"

    @on_main_process
    def start(self) -> None:
        """Begin the run."""
        import swanlab

        self.run = swanlab.init(project=self.run_name, **self.init_kwargs)

    @on_main_process
    def store_init_configuration(self, values: Any) -> None:
        """Put the configuration into the run's."""
        import swanlab

        swanlab.config.update(nested_config(values))

    @on_main_process
    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record values: whatever SwanLab shows. `kwargs` are those of `run.log`."""
        import swanlab

        shown = {name: swanlab.Text(value) if isinstance(value, str) else value for name, value in flat(values).items()}
        self.run.log(shown, step=step, **kwargs)

    @on_main_process
    def log_images(self, values: Mapping[str, Sequence[Any]], step: int | None = None, **kwargs: Any) -> None:
        """Record lists of images (arrays or PIL images) by name. `kwargs` are those of `swanlab.Image`."""
        import swanlab

        self.log({name: [swanlab.Image(image, **kwargs) for image in images] for name, images in values.items()}, step)

    @on_main_process
    def finish(self) -> None:
        """End the run."""
        if self.run is not None:
            self.run.finish()
