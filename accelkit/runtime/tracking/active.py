"""The trackers of one `Accelerator`: made from what `log_with` chose, started, logged to, finished."""

import warnings
from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any

from accelkit.runtime.errors import AccelkitError, SettingError, TrackerError
from accelkit.runtime.tracking import registry, values
from accelkit.runtime.tracking.base import GeneralTracker, is_used_here

Arguments = Mapping[str, Mapping[str, Any]]


class ActiveTrackers:
    """What was chosen, and what of it is running on this rank.

    Every tracker gets its turn, also after another one failed; then the first failure is raised, with the tracker's name.
    """

    def __init__(self, chosen: list[registry.Choice], logging_dir: str | PathLike[str] | None) -> None:
        self.chosen = chosen
        self.running: list[GeneralTracker] = []
        self._logging_dir = logging_dir
        self._were_started = False

    def start(self, project_name: str, config: Any, init_kwargs: Arguments | None) -> None:
        """Make and start the trackers of this rank, and hand them the configuration. Those that run already end first."""
        arguments = init_kwargs or {}
        self._check_names("init_kwargs", arguments)
        self.finish()
        made = [self._make(choice, project_name, arguments) for choice in self.chosen]
        self._were_started = True
        for tracker in made:
            if is_used_here(tracker):
                self._each("start", lambda one: one.start(), [tracker])
                self.running.append(tracker)
        if config is not None:
            self._each("store_init_configuration", lambda tracker: tracker.store_init_configuration(config))

    def _make(self, choice: registry.Choice, project_name: str, arguments: Arguments) -> GeneralTracker:
        if isinstance(choice, GeneralTracker):
            if choice.name in arguments:
                raise SettingError(
                    f"init_trackers: init_kwargs for {choice.name!r}, which the script has made itself",
                    hint="give these arguments to its constructor",
                )
            return choice
        kind = registry.tracker_class(choice)
        place = (project_name, self._logging_dir) if kind.requires_logging_directory else (project_name,)
        make: Callable[..., GeneralTracker] = kind
        return make(*place, **arguments.get(choice, {}))

    def log(self, given: Mapping[str, Any], step: int | None, log_kwargs: Arguments | None) -> None:
        """Hand values to every running tracker."""
        arguments = log_kwargs or {}
        self._check_names("log_kwargs", arguments)
        if self.chosen and not self._were_started:
            self._were_started = True
            warnings.warn(f"log: {self._names()} not started yet; call init_trackers(...) first", stacklevel=4)
        if self.running:
            plain = {name: values.number(value) for name, value in given.items()}
            self._each("log", lambda tracker: tracker.log(dict(plain), step=step, **arguments.get(tracker.name, {})))

    def find(self, name: str) -> GeneralTracker | None:
        """The running tracker of that name; None on a rank where none runs. Raises SettingError for a name that no running one has."""
        for tracker in self.running:
            if tracker.name == name:
                return tracker
        if self.running or name not in {*registry.known(), *self._chosen_names()}:
            running = ", ".join(tracker.name for tracker in self.running) or "none"
            raise SettingError(f"{name} is not an available tracker", hint=f"running here: {running}")
        return None

    def finish(self) -> None:
        """End every running tracker."""
        ending, self.running = self.running, []
        self._each("finish", lambda tracker: tracker.finish(), ending)

    def _each(
        self, what: str, act: Callable[[GeneralTracker], Any], trackers: list[GeneralTracker] | None = None
    ) -> None:
        failed: AccelkitError | None = None
        for tracker in self.running if trackers is None else trackers:
            try:
                act(tracker)
            except AccelkitError as error:
                failed = failed or error
            except Exception as error:  # noqa: BLE001  (whatever the library raises)
                if failed is None:
                    failed = TrackerError(f"tracker {tracker.name!r}: {what} failed: {type(error).__name__}: {error}")
                    failed.__cause__ = error
        if failed is not None:
            raise failed

    def _check_names(self, argument: str, given: Arguments) -> None:
        allowed = {*registry.known(), *self._chosen_names()}
        unknown = [name for name in given if name not in allowed]
        if unknown:
            raise SettingError(
                f"{argument}: there is no tracker called {', '.join(map(repr, unknown))}",
                hint=f"known are {', '.join(sorted(allowed))}",
            )

    def _chosen_names(self) -> list[str]:
        return [choice.name if isinstance(choice, GeneralTracker) else choice for choice in self.chosen]

    def _names(self) -> str:
        names = self._chosen_names()
        return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"
