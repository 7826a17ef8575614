"""Aim."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

from accelkit.runtime.tracking.base import LibraryTracker, on_main_process
from accelkit.runtime.tracking.values import flat, nested_config


class AimTracker(LibraryTracker):
    """A run called `run_name` in the repository at `logging_dir`; `kwargs` are those of `aim.Run`. `tracker` is the run."""

    name = "aim"
    requires_logging_directory = True

    def __init__(self, run_name: str, logging_dir: str | PathLike[str] = ".", **kwargs: Any) -> None:
        super().__init__(run_name, **kwargs)
        self.logging_dir = str(logging_dir)

    @on_main_process
    def start(self) -> None:
        """Open the run."""
        from aim import Run

        self.run = Run(repo=self.logging_dir, **self.init_kwargs)
        self.run.name = self.run_name

    @on_main_process
    def store_init_configuration(self, values: Any) -> None:
        """Keep the configuration under `hparams`."""
        self.run["hparams"] = nested_config(values)

    @on_main_process
    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record values: whatever Aim tracks. `kwargs` are those of `Run.track`."""
        from aim import Text

        for name, value in flat(values).items():
            self.run.track(Text(value) if isinstance(value, str) else value, name=name, step=step, **kwargs)

    @on_main_process
    def log_images(
        self, values: Mapping[str, Any], step: int | None = None, kwargs: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        """Record images by name; a pair is an image and its caption.

        `kwargs["aim_image"]` are arguments of `aim.Image`, `kwargs["track"]` those of `Run.track`.
        """
        import aim

        image_kwargs = {**(kwargs or {}).get("aim_image", {})}
        track_kwargs = (kwargs or {}).get("track", {})
        for name, value in values.items():
            image, caption = value if isinstance(value, Sequence) else (value, "")
            made = aim.Image(image, **{"caption": caption, **image_kwargs})
            self.run.track(made, name=name, step=step, **track_kwargs)

    @on_main_process
    def finish(self) -> None:
        """Close the run."""
        if self.run is not None:
            self.run.close()
