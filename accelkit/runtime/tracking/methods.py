"""Tracking, as methods of `Accelerator`."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from accelkit.runtime import env
from accelkit.runtime.processes import ProcessActions
from accelkit.runtime.tracking import registry
from accelkit.runtime.tracking.active import ActiveTrackers
from accelkit.runtime.tracking.base import BlankTracker, GeneralTracker
from accelkit.runtime.tracking.jsonl import JSONLTracker, plain_values
from accelkit.runtime.tracking.values import step_number


class TrackingMethods(ProcessActions):
    """Trackers, and the metrics of the run's record."""

    state: Any

    @property
    @abstractmethod
    def logging_dir(self) -> str | None:
        """Where trackers write."""

    @abstractmethod
    def wait_for_checkpoint(self) -> None:
        """Return when no checkpoint is being written any more."""

    def _keep_trackers(self, log_with: Any) -> None:
        """Decide which trackers there are; `init_trackers` starts them."""
        self._tracking = ActiveTrackers(registry.filter_trackers(log_with, self.logging_dir), self.logging_dir)
        file = env.metrics_file() if self.is_main_process else None
        self._record = None if file is None else JSONLTracker.at(file)

    @property
    def log_with(self) -> list[registry.Choice]:
        """The trackers that were chosen: names, and those that the script has made."""
        return self._tracking.chosen

    @property
    def trackers(self) -> list[GeneralTracker]:
        """The trackers that run on this rank: none before `init_trackers`, and none but those for all ranks beside rank 0."""
        return self._tracking.running

    def init_trackers(
        self, project_name: str, config: Any = None, init_kwargs: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        """Start the trackers of `log_with`, on rank 0 (those with `main_process_only = False` on every rank).

        Args:
            project_name: what trackers call the project, experiment or folder.
            config: settings to keep with the run: a dict of any depth, a dataclass or an argparse namespace.
            init_kwargs: arguments of trackers by their name: `{"wandb": {"tags": ["a"]}}`.

        Trackers that run already are ended first. Raises SettingError for unknown names and for a config that cannot be shown,
        TrackerError with the tracker's name when its library fails.
        """
        if self._record is not None and config is not None:
            self._record.store_init_configuration(config)
        self._tracking.start(project_name, config, init_kwargs)

    def log(
        self,
        values: Mapping[str, Any],
        step: int | None = None,
        log_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Hand values of a step to all trackers and, on rank 0, to the record of the run.

        Numbers, texts, tensors of one element, and dicts of them; what a tracker takes beyond that goes to that tracker.
        `log_kwargs`: further arguments of trackers' own functions, by tracker. Raises SettingError for values that nothing here
        can show, TrackerError with the tracker's name when its library fails.
        """
        step = step_number(step)
        if self.is_main_process:
            plain = plain_values(values, strict=not self._tracking.running)
            if self._record is not None:
                self._record.append(plain, step)
        self._tracking.log(values, step, log_kwargs)

    def get_tracker(self, name: str, unwrap: bool = False) -> Any:
        """A running tracker by its name; with `unwrap` the object of its library.

        On a rank without trackers it is one whose every method does nothing. Raises SettingError for a name that no tracker has.
        """
        found = self._tracking.find(name) or BlankTracker()
        return found.tracker if unwrap else found

    def end_training(self) -> None:
        """End all trackers, wait for the last checkpoint, then take down the process group (if this library made it).

        For the end of a script; again is harmless. Raises what went wrong with a checkpoint that was being written.
        """
        try:
            self._tracking.finish()
        finally:
            try:
                self.wait_for_checkpoint()
            finally:
                self.state.destroy_process_group()
