"""TensorBoard."""

import atexit
import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from accelkit.runtime.errors import SettingError
from accelkit.runtime.tracking.base import LibraryTracker, on_main_process
from accelkit.runtime.tracking.values import flat_config


class TensorBoardTracker(LibraryTracker):
    """Writes to `LOGGING_DIR/RUN_NAME`; `kwargs` are those of `SummaryWriter`. `tracker` is the writer.

    Numbers are scalars, texts texts, dicts of numbers one chart of several lines. Events are flushed at the latest when the process ends.
    """

    name = "tensorboard"
    requires_logging_directory = True

    def __init__(self, run_name: str, logging_dir: str | PathLike[str], **kwargs: Any) -> None:
        super().__init__(run_name, **kwargs)
        self.logging_dir = Path(logging_dir) / run_name

    @on_main_process
    def start(self) -> None:
        """Open the writer."""
        self.run = _summary_writer()(str(self.logging_dir), **self.init_kwargs)
        atexit.register(self.finish)

    @on_main_process
    def store_init_configuration(self, values: Any) -> None:
        """Show the configuration as hyper-parameters, and keep it in `hparams.yml` beside the events."""
        plain = flat_config(values)
        self.run.add_hparams(plain, metric_dict={}, run_name=".")
        self.run.flush()
        text = json.dumps(plain, indent=2)  # which is YAML, too
        (self.logging_dir / "hparams.yml").write_text(text + "\n", encoding="utf-8")

    @on_main_process
    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record values; `kwargs` go to the writer's function. Raises SettingError for what is no number, text or dict of numbers."""
        for name, value in values.items():
            if isinstance(value, (int, float)):
                self.run.add_scalar(name, value, global_step=step, **kwargs)
            elif isinstance(value, str):
                self.run.add_text(name, value, global_step=step, **kwargs)
            elif isinstance(value, Mapping):
                self.run.add_scalars(name, dict(value), global_step=step, **kwargs)
            else:
                raise SettingError(
                    f"tracker 'tensorboard': {name} is of type {type(value).__name__}",
                    hint="log numbers, texts and dicts of numbers; images by get_tracker('tensorboard').log_images(...)",
                )
        self.run.flush()

    @on_main_process
    def log_images(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record batches of images by name: tensors or arrays `(N, 3, H, W)`, or as `dataformats` says."""
        for name, images in values.items():
            self.run.add_images(name, images, global_step=step, **kwargs)

    @on_main_process
    def finish(self) -> None:
        """Close the writer."""
        atexit.unregister(self.finish)
        if self.run is not None:
            self.run.close()


def _summary_writer() -> Any:
    """The class of writers: that of torch, or of tensorboardX where only that one is installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        from tensorboardX import SummaryWriter
    return SummaryWriter
