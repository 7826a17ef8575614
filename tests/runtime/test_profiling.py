"""Profiling a block, in one process."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from accelkit import Accelerator, AcceleratorState, ProfileKwargs, SettingError

pytestmark = pytest.mark.filterwarnings("ignore:Warning. Profiler clears events at the end of each cycle:UserWarning")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No state of another test."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def test_a_block_is_recorded_and_written(tmp_path: Path) -> None:
    """The profiler has seen the operations of the block; the rank's trace is a Chrome trace that names them."""
    acc = Accelerator(
        kwargs_handlers=[ProfileKwargs(activities=["cpu"], output_trace_dir=str(tmp_path / "deep" / "er"))]
    )
    with acc.profile() as profiler:
        torch.ones(8, 8) @ torch.ones(8, 8)

    assert "aten::mm" in {event.key for event in profiler.key_averages()}
    assert acc.profile_handler is not None
    events = json.loads((tmp_path / "deep" / "er" / "profile_0.json").read_text())["traceEvents"]
    assert any(event.get("name") == "aten::mm" for event in events)


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The block's own handler wins over the constructor's; a schedule calls back for every window."""
    monkeypatch.chdir(tmp_path)
    seen: list[int] = []
    handler = ProfileKwargs(
        activities=["cpu"],
        schedule_option={"wait": 1, "warmup": 1, "active": 2, "repeat": 2},
        on_trace_ready=lambda profiler: seen.append(profiler.step_num),
        record_shapes=True,
    )
    acc = Accelerator(kwargs_handlers=[ProfileKwargs(output_trace_dir="never")])
    with acc.profile(handler) as profiler:
        for _ in range(8):
            torch.ones(2) + 1
            profiler.step()

    assert seen == [4, 8]
    assert list(tmp_path.iterdir()) == []


def test_a_schedule_that_never_began(tmp_path: Path) -> None:
    """A block that ends before the first active step: a warning that says what to do, and no file."""
    handler = ProfileKwargs(schedule_option={"wait": 5, "warmup": 1, "active": 1}, output_trace_dir=str(tmp_path))
    with pytest.warns(UserWarning, match=r"rank 0 recorded nothing.*profiler\.step"), Accelerator().profile(handler):
        torch.ones(2) + 1

    assert list(tmp_path.iterdir()) == []


def test_an_error_in_the_block_is_the_callers(tmp_path: Path) -> None:
    """It passes; no trace is written."""
    with (
        pytest.raises(ZeroDivisionError),
        Accelerator().profile(ProfileKwargs(activities=["cpu"], output_trace_dir=str(tmp_path))),
    ):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_known() -> None:
    """Activities and options of the schedule that there are not are named, with those that there are."""
    with pytest.raises(SettingError, match="activity 'gpu' is not known\n  activities are cpu, cuda"):
        ProfileKwargs(activities=["cpu", "gpu"]).build()
    with pytest.raises(SettingError, match=r"schedule_option=.*'pause'"):
        ProfileKwargs(schedule_option={"pause": 1}).build()
