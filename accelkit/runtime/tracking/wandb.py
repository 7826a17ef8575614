"""Weights & Biases."""

from collections.abc import Mapping, Sequence
from typing import Any

from accelkit.runtime.tracking.base import LibraryTracker, on_main_process
from accelkit.runtime.tracking.values import nested_config


class WandBTracker(LibraryTracker):
    """A run of the project `run_name`; `kwargs` are those of `wandb.init`. `tracker` is the run.

    For a run per rank: a subclass with `main_process_only = False`.
    """

    name = "wandb"

    @on_main_process
    def start(self) -> None:
        """Begin the run."""
        import wandb

        self.run = wandb.init(project=self.run_name, **self.init_kwargs)

    @on_main_process
    def store_init_configuration(self, values: Any) -> None:
        """Put the configuration, nested as it is, into the run's."""
        self.run.config.update(nested_config(values), allow_val_change=True)

    @on_main_process
    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record values: whatever `wandb` shows. `kwargs` are those of `run.log`."""
        self.run.log(dict(values), step=step, **kwargs)

    @on_main_process
    def log_images(self, values: Mapping[str, Sequence[Any]], step: int | None = None, **kwargs: Any) -> None:
        """Record lists of images (arrays or PIL images) by name. `kwargs` are those of `wandb.Image`."""
        import wandb

        self.log({name: [wandb.Image(image, **kwargs) for image in images] for name, images in values.items()}, step)

    @on_main_process
    def log_table(
        self,
        table_name: str,
        columns: Sequence[str] | None = None,
        data: Sequence[Sequence[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Record a table: column names and rows, or a pandas data frame. `kwargs` are those of `run.log`."""
        import wandb

        self.log({table_name: wandb.Table(columns=columns, data=data, dataframe=dataframe)}, step, **kwargs)

    @on_main_process
    def finish(self) -> None:
        """End the run."""
        if self.run is not None:
            self.run.finish()
