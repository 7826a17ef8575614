"""ClearML."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from accelkit.runtime import env
from accelkit.runtime.errors import SettingError
from accelkit.runtime.tracking.base import LibraryTracker, on_main_process
from accelkit.runtime.tracking.values import flat, nested_config

_SERIES: Final = ("eval", "test", "train")


class ClearMLTracker(LibraryTracker):
    """The running task, or a new one in the project `run_name`; `kwargs` are those of `Task.init`. `tracker` is the task.

    CLEARML_PROJECT and CLEARML_TASK win over `run_name` as the names of project and task. A task that ran already is left open at the end.
    """

    name = "clearml"

    @on_main_process
    def start(self) -> None:
        """Find or begin the task."""
        from clearml import Task

        running = Task.current_task()
        self._is_ours = running is None
        if running is not None:
            self.run = running
            return
        project = env.text("CLEARML_PROJECT") or self.run_name
        task = env.text("CLEARML_TASK") or self.run_name
        self.run = Task.init(**{"project_name": project, "task_name": task, **self.init_kwargs})

    @on_main_process
    def store_init_configuration(self, values: Any) -> None:
        """Keep the configuration as the task's."""
        self.run.connect_configuration(nested_config(values))

    @on_main_process
    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record numbers (`eval_loss` goes to the chart `loss` as the line `eval`; without a step as single values) and texts.

        Raises SettingError for anything else.
        """
        logger = self.run.get_logger()
        for name, value in flat(values).items():
            if isinstance(value, str):
                logger.report_text(f"{name}: {value}", print_console=False)
                continue
            if not isinstance(value, (int, float)):
                raise SettingError(
                    f"tracker 'clearml': {name} is of type {type(value).__name__}",
                    hint="log numbers and texts; images and tables by get_tracker('clearml').log_images(...) and log_table(...)",
                )
            if step is None:
                logger.report_single_value(name=name, value=value, **kwargs)
            else:
                title, series = title_and_series(name)
                logger.report_scalar(title=title, series=series, value=value, iteration=step, **kwargs)

    @on_main_process
    def log_images(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record images (arrays or PIL images) by name. `kwargs` are those of `Logger.report_image`."""
        logger = self.run.get_logger()
        for name, image in values.items():
            title, series = title_and_series(name)
            logger.report_image(title=title, series=series, iteration=step, image=image, **kwargs)

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
        """Record a table: column names and rows, or a pandas data frame. `kwargs` are those of `Logger.report_table`."""
        if dataframe is None and data is None:
            raise SettingError("tracker 'clearml': log_table needs `data` or `dataframe`")
        rows = dataframe if dataframe is not None else [*([list(columns)] if columns else []), *map(list, data or ())]
        title, series = title_and_series(table_name)
        self.run.get_logger().report_table(title=title, series=series, table_plot=rows, iteration=step, **kwargs)

    @on_main_process
    def finish(self) -> None:
        """Close the task, if it was begun here."""
        if self.run is not None and self._is_ours:
            self.run.close()


def title_and_series(name: str) -> tuple[str, str]:
    """The chart and the line in it that a value belongs to: `eval_loss` is (`loss`, `eval`), `loss` is (`loss`, `train`)."""
    for series in _SERIES:
        if name.startswith(f"{series}_"):
            return name[len(series) + 1 :], series
    return name, "train"
