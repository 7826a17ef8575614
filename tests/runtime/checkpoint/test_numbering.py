"""Automatic names: counted as numbers, going on from what is there, and no more of them than wanted."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from accelkit import Accelerator, AcceleratorState, CheckpointError, GradientState, ProjectConfiguration, SettingError
from tests.support.checkpoints import Run, make_run


def start(folder: Path, **more: Any) -> Run:
    """A run with automatic names, as a new process would make it."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    return make_run(project_config=ProjectConfiguration(str(folder), automatic_checkpoint_naming=True, **more))


def names(folder: Path) -> list[str]:
    """What is in the folder of checkpoints."""
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


@pytest.mark.parametrize("limit", [1, 2, 3, 11, None])
def test_the_oldest_go_by_number(tmp_path: Path, limit: int | None) -> None:
    """Of twelve saves the last ones stay: 10 is later than 9."""
    run = start(tmp_path, total_limit=limit)
    for number in range(12):
        assert run.accelerator.save_iteration == number
        assert run.accelerator.save_state() == tmp_path / "checkpoints" / f"checkpoint_{number}"
    assert names(tmp_path) == sorted(f"checkpoint_{n}" for n in range(12 - (limit or 12), 12))


@pytest.mark.parametrize("loaded", [None, "checkpoint_11", "checkpoint_9"])
def test_a_resumed_run_counts_on(tmp_path: Path, loaded: str | None) -> None:
    """After loading the latest, or an older one, the next is the one after the last that is there."""
    run = start(tmp_path, total_limit=3)
    for _ in range(12):
        run.accelerator.save_state()
    run = start(tmp_path, total_limit=3)
    run.accelerator.load_state(loaded and tmp_path / "checkpoints" / loaded)

    assert run.accelerator.save_state().name == "checkpoint_12"
    assert names(tmp_path) == ["checkpoint_10", "checkpoint_11", "checkpoint_12"]


@pytest.mark.parametrize("asynchronous", [True, False])
def test_threads_save_one_after_another(tmp_path: Path, asynchronous: bool) -> None:
    """Whatever threads save at the same time, every save has a number of its own and loads."""
    run = start(tmp_path)
    with ThreadPoolExecutor(4) as pool:
        saves = [pool.submit(run.accelerator.save_state, asynchronous=asynchronous) for _ in range(8)]
    for save in saves:
        save.result()
    run.accelerator.wait_for_checkpoint()

    assert names(tmp_path) == [f"checkpoint_{number}" for number in range(8)]
    for name in names(tmp_path):
        run.accelerator.load_state(tmp_path / "checkpoints" / name)


def test_a_name_beside_automatic_ones_is_refused(tmp_path: Path) -> None:
    """It would be ignored; nothing is written."""
    with pytest.raises(SettingError, match=r"best.*the name is chosen"):
        start(tmp_path).accelerator.save_state("best")
    assert not (tmp_path / "checkpoints").exists()


def test_a_new_run_does_not_overwrite(tmp_path: Path) -> None:
    """A run that starts anew in an old project is told how to go on, and may start beside."""
    start(tmp_path).accelerator.save_state()
    run = start(tmp_path)
    with pytest.raises(SettingError, match=r"checkpoint_0 is there already(.|\n)*iteration=1"):
        run.accelerator.save_state()
    assert start(tmp_path, iteration=1).accelerator.save_state().name == "checkpoint_1"


@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("theirs", [3, 5])
def test_a_limit_leaves_what_was_just_saved(tmp_path: Path, limit: int, theirs: int) -> None:
    """Beside checkpoints of a higher number, a run's new ones stay, its own oldest go, and theirs are left alone."""
    for number in range(theirs, 9):
        (tmp_path / "checkpoints" / f"checkpoint_{number}").mkdir(parents=True)
    run = start(tmp_path, total_limit=limit)
    for number in range(theirs):
        assert run.accelerator.save_state().is_dir()
        kept = [*range(max(0, number + 1 - limit), number + 1), *range(theirs, 9)]
        assert names(tmp_path) == [f"checkpoint_{n}" for n in kept]


def test_the_newest_that_is_damaged_is_not_passed_over(tmp_path: Path) -> None:
    """load_state() refuses it, and names the one before; nothing is chosen silently."""
    run = start(tmp_path)
    for _ in range(11):
        run.accelerator.save_state()
    (tmp_path / "checkpoints" / "checkpoint_10" / "optimizer.bin").unlink()
    with pytest.raises(CheckpointError, match=r"optimizer\.bin is missing") as caught:
        run.accelerator.load_state()
    assert "checkpoint_9" in str(caught.value)
    assert "checkpoint_8" not in str(caught.value)


def test_the_project(tmp_path: Path) -> None:
    """Folders and limits: what fills what, and what is refused."""
    assert ProjectConfiguration("a").logging_dir == "a"
    assert ProjectConfiguration("a", "b").logging_dir == "b"
    config = ProjectConfiguration(logging_dir="b")
    config.set_directories("c")
    assert (config.project_dir, config.logging_dir) == ("c", "b")
    acc = Accelerator(project_dir=tmp_path)
    assert (acc.project_dir, acc.logging_dir) == (str(tmp_path), str(tmp_path))
    with pytest.raises(SettingError, match="total_limit=0"):
        ProjectConfiguration(total_limit=0)
    with pytest.raises(SettingError, match="needs a project_dir"):
        make_run(project_config=ProjectConfiguration(automatic_checkpoint_naming=True)).accelerator.save_state()
    with pytest.raises(SettingError, match="there is no checkpoint_N"):
        start(tmp_path).accelerator.load_state()
