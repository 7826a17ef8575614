"""MLflow."""

import json
import warnings
from collections.abc import Mapping
from itertools import islice
from os import PathLike
from typing import Any

from accelkit.runtime import env
from accelkit.runtime.errors import SettingError
from accelkit.runtime.everyday import str_to_bool
from accelkit.runtime.tracking.base import LibraryTracker, on_main_process
from accelkit.runtime.tracking.values import flat, flat_config


class MLflowTracker(LibraryTracker):
    """A run of an experiment, which is made when it is not there. `tracker` is the run; it is mlflow's active one.

    Args:
        experiment_name: the experiment. MLFLOW_EXPERIMENT_NAME wins.
        logging_dir: where a new experiment keeps its artifacts; None: where the tracking server does.
        run_id: a run to go on with. MLFLOW_RUN_ID wins.
        tags: tags of the run, and of a new experiment. MLFLOW_TAGS (a JSON object) wins.
        nested_run: begin it inside the active run. MLFLOW_NESTED_RUN wins.
        run_name, description: of the run.
    """

    name = "mlflow"

    def __init__(
        self,
        experiment_name: str | None = None,
        logging_dir: str | PathLike[str] | None = None,
        run_id: str | None = None,
        tags: Mapping[str, Any] | str | None = None,
        nested_run: bool = False,
        run_name: str | None = None,
        description: str | None = None,
    ) -> None:
        super().__init__(env.text("MLFLOW_EXPERIMENT_NAME") or experiment_name)
        self._artifacts = None if logging_dir is None else str(logging_dir)
        said = env.text("MLFLOW_TAGS") or tags
        self._tags = json.loads(said) if isinstance(said, str) else said
        nested = env.text("MLFLOW_NESTED_RUN")
        self._arguments = {
            "run_id": env.text("MLFLOW_RUN_ID") or run_id,
            "nested": nested_run if nested is None else bool(str_to_bool(nested)),
            "run_name": run_name,
            "description": description,
        }

    @on_main_process
    def start(self) -> None:
        """Begin the run, or go on with it."""
        import mlflow

        name = self.run_name or "Default"
        found = mlflow.get_experiment_by_name(name)
        if found is None:
            experiment = mlflow.create_experiment(name, artifact_location=self._artifacts, tags=self._tags)
        else:
            experiment = found.experiment_id
        self.run = mlflow.start_run(experiment_id=experiment, tags=self._tags, **self._arguments)

    @property
    def _run_id(self) -> str:
        return str(self.run.info.run_id)

    @on_main_process
    def store_init_configuration(self, values: Any) -> None:
        """Keep the configuration as parameters. Warns, and leaves out, what is longer than MLflow takes."""
        import mlflow
        from mlflow.utils.validation import MAX_PARAM_VAL_LENGTH, MAX_PARAMS_TAGS_PER_BATCH

        plain = flat_config(values)
        for name in [name for name, value in plain.items() if len(str(value)) > MAX_PARAM_VAL_LENGTH]:
            warnings.warn(
                f"tracker 'mlflow': config {name!r} is left out: its text is longer than {MAX_PARAM_VAL_LENGTH} characters",
                stacklevel=2,
            )
            del plain[name]
        pairs = iter(plain.items())
        while batch := dict(islice(pairs, MAX_PARAMS_TAGS_PER_BATCH)):
            mlflow.log_params(batch, run_id=self._run_id)

    @on_main_process
    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record numbers as metrics (those of dicts under names joined by `/`) and texts as tags.

        `kwargs` are those of `mlflow.log_metrics`. Raises SettingError for anything else.
        """
        import mlflow

        plain = flat(values)
        for name, value in plain.items():
            if not isinstance(value, (int, float, str)):
                raise SettingError(
                    f"tracker 'mlflow': {name} is of type {type(value).__name__}",
                    hint="log numbers and texts; figures and files by get_tracker('mlflow').log_figure(...) and log_artifact(...)",
                )
        numbers = {name: float(value) for name, value in plain.items() if isinstance(value, (int, float))}
        if numbers:
            mlflow.log_metrics(numbers, step=step, run_id=self._run_id, **kwargs)
        for name, value in plain.items():
            if isinstance(value, str):
                mlflow.MlflowClient().set_tag(self._run_id, name, value)

    @on_main_process
    def log_figure(self, figure: Any, artifact_file: str, **save_kwargs: Any) -> None:
        """Keep a figure of matplotlib or plotly under a path among the run's artifacts."""
        import mlflow

        mlflow.log_figure(figure, artifact_file, **save_kwargs)

    @on_main_process
    def log_artifact(self, local_path: str, artifact_path: str | None = None) -> None:
        """Keep a file among the run's artifacts, in the folder `artifact_path`."""
        import mlflow

        mlflow.log_artifact(local_path, artifact_path, run_id=self._run_id)

    @on_main_process
    def log_artifacts(self, local_dir: str, artifact_path: str | None = None) -> None:
        """Keep the content of a folder among the run's artifacts, in the folder `artifact_path`."""
        import mlflow

        mlflow.log_artifacts(local_dir, artifact_path, run_id=self._run_id)

    @on_main_process
    def finish(self) -> None:
        """End the run."""
        import mlflow

        mlflow.end_run()
