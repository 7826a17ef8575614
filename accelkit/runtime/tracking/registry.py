"""Names of trackers: which there are, which can be used here, and what a script's `log_with` means."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from os import PathLike
from typing import Any, Final

from accelkit.runtime import available
from accelkit.runtime.enumerations import ListedEnum
from accelkit.runtime.errors import MissingPackageError, SettingError
from accelkit.runtime.tracking.base import GeneralTracker

Choice = str | GeneralTracker
"""A tracker that a script has chosen: the name of a registered one, or one that it made."""


class LoggerType(ListedEnum):
    """Names that `log_with` takes."""

    ALL = "all"
    AIM = "aim"
    CLEARML = "clearml"
    COMETML = "comet_ml"
    DVCLIVE = "dvclive"
    JSONL = "jsonl"
    MLFLOW = "mlflow"
    SWANLAB = "swanlab"
    TENSORBOARD = "tensorboard"
    TRACKIO = "trackio"
    WANDB = "wandb"


@dataclass(frozen=True)
class Entry:
    """One registered tracker."""

    home: str
    """`module:class`, the module inside this package; imported when it is asked for."""
    is_available: Callable[[], bool] | None = None
    """Whether its library is installed; None: it needs none."""
    install: str = ""
    """What pip calls the library."""


def _has_mlflow() -> bool:
    """Whether MLflow is installed, whole or without its server."""
    return available.is_mlflow_available() or available.is_library("mlflow", "mlflow-skinny")


REGISTRY: Final[dict[str, Entry]] = {
    "aim": Entry("aim:AimTracker", available.is_aim_available, "aim"),
    "clearml": Entry("clearml:ClearMLTracker", available.is_clearml_available, "clearml"),
    "comet_ml": Entry("comet_ml:CometMLTracker", available.is_comet_ml_available, "comet_ml"),
    "dvclive": Entry("dvclive:DVCLiveTracker", available.is_dvclive_available, "dvclive"),
    "jsonl": Entry("jsonl:JSONLTracker"),
    "mlflow": Entry("mlflow:MLflowTracker", _has_mlflow, "mlflow"),
    "swanlab": Entry("swanlab:SwanLabTracker", available.is_swanlab_available, "swanlab"),
    "tensorboard": Entry("tensorboard:TensorBoardTracker", available.is_tensorboard_available, "tensorboard"),
    "trackio": Entry("trackio:TrackioTracker", available.is_trackio_available, "trackio"),
    "wandb": Entry("wandb:WandBTracker", available.is_wandb_available, "wandb"),
}
_REGISTERED: dict[str, type[GeneralTracker]] = {}
"""Classes that a script has added."""


def known() -> list[str]:
    """Names of all trackers, a script's own included."""
    return sorted({*REGISTRY, *_REGISTERED})


def get_available_trackers() -> list[str]:
    """What `log_with="all"` stands for: the trackers whose library is installed, and those that a script has registered."""
    installed = [name for name, entry in REGISTRY.items() if entry.is_available is not None and entry.is_available()]
    return [*installed, *(name for name in _REGISTERED if name not in installed)]


def register_tracker_class(cls: type[GeneralTracker]) -> type[GeneralTracker]:
    """Add a class of trackers under its `name`, for `log_with`; returns the class, so that it serves as a decorator.

    `init_trackers` makes it with the project's name, and the logging folder where it wants one. Raises SettingError for what is
    no tracker class; a class whose name is taken replaces the other, with a warning.
    """
    given: Any = cls
    if not isinstance(given, type) or not issubclass(given, GeneralTracker):
        raise SettingError(f"register_tracker_class: {given!r} is no class derived from GeneralTracker")
    needed = {"name": str, "requires_logging_directory": bool}
    wrong = [name for name, kind in needed.items() if not isinstance(getattr(cls, name, None), kind)]
    wrong += [] if hasattr(cls, "tracker") else ["tracker"]
    if wrong:
        raise SettingError(
            f"register_tracker_class: {cls.__name__} lacks {', '.join(wrong)}",
            hint="`name` (text) and `requires_logging_directory` (truth value) belong to the class, `tracker` is a property",
        )
    if cls.name == LoggerType.ALL:
        raise SettingError(f"register_tracker_class: {cls.__name__}.name is 'all', which stands for all trackers")
    if cls.name in REGISTRY or _REGISTERED.get(cls.name, cls) is not cls:
        warnings.warn(f"{cls.__name__} replaces the tracker that was called {cls.name!r} before", stacklevel=2)
    _REGISTERED[cls.name] = cls
    return cls


def tracker_class(name: str) -> type[GeneralTracker]:
    """The class of that name. Raises SettingError for an unknown name, MissingPackageError when its library is not installed."""
    if name in _REGISTERED:
        return _REGISTERED[name]
    entry = REGISTRY.get(name)
    if entry is None:
        raise SettingError(
            f"Unsupported logging capability: log_with={name!r} is not known",
            hint=f"known are all, {', '.join(known())}",
        )
    if entry.is_available is not None and not entry.is_available():
        raise MissingPackageError(
            f"log_with={name!r} needs a package that is not installed", hint=available.how_to_install(entry.install)
        )
    module, _, kind = entry.home.partition(":")
    made: type[GeneralTracker] = getattr(import_module(f"accelkit.runtime.tracking.{module}"), kind)
    return made


def filter_trackers(log_with: Any, logging_dir: str | PathLike[str] | None = None) -> list[Choice]:
    """What a script's `log_with` means: names and made trackers, each once, in order; "all" stands for the available ones.

    Raises SettingError for what is not known, or needs a folder while there is none; MissingPackageError when a library is missing.
    """
    given = log_with if isinstance(log_with, (list, tuple)) else [] if log_with is None else [log_with]
    chosen: list[Choice] = []
    for item in given:
        for choice in get_available_trackers() if item == LoggerType.ALL else [item]:
            name = _checked(choice, logging_dir)
            if name not in chosen:
                chosen.append(name)
    if given and not chosen:
        warnings.warn('log_with="all", but no tracker\'s library is installed: nothing is tracked', stacklevel=4)
    return chosen


def _checked(choice: Any, logging_dir: str | PathLike[str] | None) -> Choice:
    if isinstance(choice, GeneralTracker):
        return choice
    if not isinstance(choice, str):
        raise SettingError(
            f"Unsupported logging capability: log_with={choice!r}",
            hint="give names, or made trackers; a class of your own is known by name after register_tracker_class(...)",
        )
    name = str(choice).lower()
    if tracker_class(name).requires_logging_directory and logging_dir is None:
        raise SettingError(
            f"log_with={name!r} needs a folder to write to, and there is none",
            hint='Accelerator(project_dir="..."), or ProjectConfiguration(logging_dir="...")',
        )
    return name
