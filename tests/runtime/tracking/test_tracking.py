"""Trackers of a script's own, through `Accelerator`: chosen, started, logged to, found, finished."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from accelkit import (
    Accelerator,
    AcceleratorState,
    GeneralTracker,
    MissingPackageError,
    ProjectConfiguration,
    SettingError,
    TrackerError,
)
from accelkit.runtime import available
from accelkit.runtime.tracking import (
    LoggerType,
    filter_trackers,
    get_available_trackers,
    on_main_process,
    register_tracker_class,
    registry,
)


class Notes(GeneralTracker):
    """Writes down what it is asked."""

    name = "notes"
    requires_logging_directory = False

    def __init__(self, project: str = "", **kwargs: Any) -> None:
        super().__init__()
        self.project, self.kwargs = project, kwargs
        self.seen: list[Any] = []

    @property
    def tracker(self) -> list[Any]:
        """What was asked."""
        return self.seen

    def start(self) -> None:
        """Begin."""
        self.seen.append("start")

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Configuration."""
        self.seen.append(values)

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Values."""
        self.seen.append((values, step, kwargs))

    def finish(self) -> None:
        """End."""
        self.seen.append("finish")


class Broken(Notes):
    """A tracker whose library fails."""

    name = "broken"

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Fail."""
        raise ConnectionError("no route")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No state and no registered class of another test."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    registry._REGISTERED.clear()


def test_a_tracker_of_ones_own() -> None:
    """It is started once, gets the configuration as it is, plain numbers, its own arguments, and its end."""
    mine = Notes()
    acc = Accelerator(log_with=mine)
    config = {"a": {"b": object()}}
    assert acc.log_with == [mine]
    assert acc.trackers == []
    acc.init_trackers("project", config)
    acc.log({"loss": torch.tensor(0.5), "odd": [1]}, step=3, log_kwargs={"notes": {"extra": 1}})

    assert acc.get_tracker("notes") is mine
    assert acc.get_tracker("notes", unwrap=True) is mine.seen
    acc.end_training()
    acc.end_training()
    assert mine.seen == ["start", config, ({"loss": 0.5, "odd": [1]}, 3, {"extra": 1}), "finish"]
    assert mine.seen[1] is config


def test_what_a_tracker_must_define() -> None:
    """A class that lacks something says what, when it is made and when it is registered."""

    class Nothing(GeneralTracker):
        pass

    class Half(GeneralTracker):
        name = "half"

        @property
        def tracker(self) -> None:
            """None."""

    with pytest.raises(NotImplementedError, match="`name`, `requires_logging_directory`, `tracker`"):
        Nothing()
    with pytest.raises(NotImplementedError, match="define `requires_logging_directory`"):
        Half()
    with pytest.raises(SettingError, match="Nothing lacks name, requires_logging_directory, tracker"):
        register_tracker_class(Nothing)
    with pytest.raises(ValueError, match="no class derived from GeneralTracker"):
        register_tracker_class(3)  # type: ignore[arg-type]


def test_a_registered_class_is_known_by_name() -> None:
    """It is made with the project's name and its arguments, is one of "all", and replaces another only with a warning."""
    assert register_tracker_class(Notes) is Notes
    register_tracker_class(Notes)
    acc = Accelerator(log_with="notes")
    acc.init_trackers("project", init_kwargs={"notes": {"color": "red"}, "wandb": {"mode": "offline"}})

    made = acc.get_tracker("notes")
    assert (made.project, made.kwargs) == ("project", {"color": "red"})
    assert "notes" in get_available_trackers()
    other = type("Other", (Notes,), {})
    with pytest.warns(UserWarning, match="Other replaces the tracker that was called 'notes'"):
        register_tracker_class(other)


def test_log_with() -> None:
    """Names in any case, members of LoggerType, made trackers, lists of them, each once; what is not known is refused."""
    mine = Notes()
    assert filter_trackers(None) == []
    assert filter_trackers([mine, "JSONL", LoggerType.JSONL, mine], "folder") == [mine, "jsonl"]
    assert "jsonl" in LoggerType
    assert str(LoggerType.COMETML) == "comet_ml"
    with pytest.raises(ValueError, match="Unsupported logging capability: log_with='tensorbaord'"):
        filter_trackers("tensorbaord")
    with pytest.raises(ValueError, match="register_tracker_class"):
        filter_trackers(Notes)
    with pytest.raises(ValueError, match="log_with='jsonl' needs a folder"):
        Accelerator(log_with="jsonl")


def test_all_means_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The word adds what can be used here to the trackers given; where nothing can, it says so."""
    monkeypatch.setattr(registry, "get_available_trackers", list)
    mine = Notes()
    assert filter_trackers(["all", mine]) == [mine]
    with pytest.warns(UserWarning, match="no tracker's library is installed"):
        assert Accelerator(log_with="all").log_with == []
    monkeypatch.undo()
    register_tracker_class(Notes)
    assert filter_trackers("all", "folder") == get_available_trackers()


def test_a_missing_library_is_named() -> None:
    """A tracker that was asked for by name and is not installed: an ImportError that says what to install."""
    missing = [name for name in registry.REGISTRY if name not in (*get_available_trackers(), "jsonl")]
    for name in missing:
        with pytest.raises(MissingPackageError, match=rf"(?s)log_with='{name}'.*pip install {name}"):
            Accelerator(log_with=[name], project_dir="folder")
    assert issubclass(MissingPackageError, ImportError)
    assert available.is_tensorboard_available() == ("tensorboard" not in missing)


def test_every_tracker_can_be_imported() -> None:
    """Every class of the registry, whether its library is there or not, is a tracker of the name it is registered under."""
    from importlib import import_module

    for name, entry in registry.REGISTRY.items():
        module, _, kind = entry.home.partition(":")
        found = getattr(import_module(f"accelkit.runtime.tracking.{module}"), kind)
        assert found.name == name
        assert isinstance(found.requires_logging_directory, bool)
        assert name in LoggerType
        assert "tracker" in dir(found)


def test_a_tracker_that_fails_is_named_and_alone() -> None:
    """The others still get the values; the error names the tracker, its cause is the library's."""
    last = Notes()
    acc = Accelerator(log_with=[Broken(), last])
    acc.init_trackers("project")
    with pytest.raises(TrackerError, match="tracker 'broken': log failed: ConnectionError: no route") as caught:
        acc.log({"a": 1})

    assert isinstance(caught.value.__cause__, ConnectionError)
    assert last.seen == ["start", ({"a": 1}, None, {})]
    acc.end_training()
    assert last.seen[-1] == "finish"


def test_names_that_nobody_has() -> None:
    """A misspelt name among arguments, or asked for, is refused with the names there are."""
    acc = Accelerator(log_with=Notes())
    for call in (
        lambda: acc.init_trackers("project", init_kwargs={"wanb": {}}),
        lambda: acc.log({}, log_kwargs={"wanb": {}}),
    ):
        with pytest.raises(SettingError, match="there is no tracker called 'wanb'"):
            call()
    with pytest.raises(SettingError, match="init_kwargs for 'notes', which the script has made itself"):
        acc.init_trackers("project", init_kwargs={"notes": {}})
    with pytest.raises(ValueError, match="wanb is not an available tracker"):
        acc.get_tracker("wanb")
    acc.init_trackers("project")
    with pytest.raises(ValueError, match="wandb is not an available tracker\n  running here: notes"):
        acc.get_tracker("wandb")


def test_logging_before_the_start_is_said_once() -> None:
    """Values that go nowhere because init_trackers was forgotten: one warning."""
    acc = Accelerator(log_with=Notes())
    with pytest.warns(UserWarning, match="notes is not started yet"):
        acc.log({"a": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        acc.log({"a": 1})


def test_starting_again_ends_the_run_before() -> None:
    """A second init_trackers is a second run."""
    mine = Notes()
    acc = Accelerator(log_with=mine)
    acc.init_trackers("one")
    acc.init_trackers("two")

    assert mine.seen == ["start", "finish", "start"]
    assert acc.trackers == [mine]


def test_without_trackers_every_method_does_nothing() -> None:
    """Where none runs, a known tracker's place is taken by one that takes any call."""
    acc = Accelerator(log_with=Notes())
    blank = acc.get_tracker("notes")

    assert blank.log({"a": 1}) is None
    assert blank.log_images({"a": []}) is None
    assert blank.run.config.update({"a": 1}) is None
    assert acc.get_tracker("wandb", unwrap=True).summary.update() is None
    assert isinstance(blank, GeneralTracker)


def test_the_jsonl_tracker_and_the_record_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both hold the same lines: the configuration, then values with their bits, nested names joined."""
    record = tmp_path / "record.jsonl"
    monkeypatch.setenv("KIT_METRICS_FILE", str(record))
    acc = Accelerator(log_with="jsonl", project_config=ProjectConfiguration(logging_dir=str(tmp_path / "logs")))
    acc.init_trackers("project", {"rate": 0.1})
    acc.log({"loss": {"train": torch.tensor(0.5), "eval": float("inf")}, "note": "x"}, step=1)
    acc.end_training()
    lines = [json.loads(line) for line in record.read_text().splitlines()]

    assert (tmp_path / "logs" / "project" / "metrics.jsonl").read_text() == record.read_text()
    assert lines[0] == {"config": {"rate": 0.1}}
    assert lines[1]["values"] == {"loss/train": 0.5, "loss/eval": None, "note": "x"}
    assert lines[1]["hex"] == {"loss/train": (0.5).hex(), "loss/eval": "inf"}


def test_what_only_a_tracker_takes_stays_out_of_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tracker that takes it, an image or a list is no error; without one, it is."""
    record = tmp_path / "record.jsonl"
    monkeypatch.setenv("KIT_METRICS_FILE", str(record))
    acc = Accelerator(log_with=Notes())
    with pytest.raises(SettingError, match="log: x is of type list"):
        Accelerator().log({"x": [1]})
    acc.init_trackers("project")
    acc.log({"x": [1], "y": 2})

    assert json.loads(record.read_text())["values"] == {"y": 2}
