"""Saving beside training: the state at the call, whatever training does meanwhile."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from accelkit import Accelerator, CheckpointError, SaveHandle
from tests.support.checkpoints import OPTIMIZERS, make_run, same, state_of
from tests.support.disks import full, small_disk
from tests.support.kit import ROOT, until


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_state_is_that_of_the_call(tmp_path: Path, optimizer: str, safe: bool) -> None:
    """Training goes on at once and changes every tensor; the checkpoint is the one that a waiting save would have made."""
    run = make_run(optimizer)
    run.step(2)
    run.accelerator.save_state(tmp_path / "waiting", safe_serialization=safe)
    handles = []
    for number in range(3):
        handles.append(run.accelerator.save_state(tmp_path / f"a{number}", safe_serialization=safe, asynchronous=True))
        run.step(1)
    run.accelerator.wait_for_checkpoint()
    assert [handle.done for handle in handles] == [True] * 3
    assert [handle.wait() for handle in handles] == [tmp_path / f"a{number}" for number in range(3)]
    end = state_of(run)

    other = make_run(optimizer, Accelerator(), seed=8)
    other.accelerator.load_state(tmp_path / "a0")
    again = make_run(optimizer, Accelerator(), seed=9)
    again.accelerator.load_state(tmp_path / "waiting")
    assert same(state_of(other), state_of(again))
    other.accelerator.load_state(tmp_path / "a0")
    other.step(3)
    assert same(state_of(other), end)


def test_a_save_waits_although_somebody_else_waits(tmp_path: Path) -> None:
    """While another thread waits for the first save, the second one does not touch what the first is writing."""
    acc = Accelerator()
    model = acc.prepare(torch.nn.Linear(2000, 2000))
    for value in (1.0, 2.0):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(value)
        acc.save_state(tmp_path / str(value), asynchronous=True)
        watcher = threading.Thread(target=acc.wait_for_checkpoint)
        watcher.start()
        until(lambda watcher=watcher: watcher.is_alive() or acc._background._current is None, "it waits", 5)
    watcher.join()
    acc.wait_for_checkpoint()

    for value in (1.0, 2.0):
        acc.load_state(tmp_path / str(value))
        assert model.weight.detach().unique().tolist() == [value]


def test_buffers_are_kept(tmp_path: Path) -> None:
    """The second snapshot goes into the memory of the first."""
    run = make_run()
    run.step()
    run.accelerator.save_state(tmp_path / "a", asynchronous=True)
    run.accelerator.wait_for_checkpoint()
    places = {key: buffer.data_ptr() for key, buffer in run.accelerator._background._buffers._by_key.items()}
    assert len(places) > 10
    run.step()
    run.accelerator.save_state(tmp_path / "b", asynchronous=True)
    assert {k: b.data_ptr() for k, b in run.accelerator._background._buffers._by_key.items()} == places
    run.accelerator.wait_for_checkpoint()


@pytest.mark.parametrize("then", ["wait", "wait_for_checkpoint", "save_state", "load_state"])
def test_a_failure_is_raised_by_whoever_waits(tmp_path: Path, then: str) -> None:
    """A disk that is full is told once; the folder is gone, and the next save, with room again, is a good one."""
    run = make_run()
    with small_disk(tmp_path / "disk", 2**20) as disk:
        run.accelerator.save_state(disk / "good")
        with full(disk):
            handle: SaveHandle = run.accelerator.save_state(disk / "a", asynchronous=True)
            handle._done.wait(60)
        calls = {
            "wait": handle.wait,
            "wait_for_checkpoint": run.accelerator.wait_for_checkpoint,
            "save_state": lambda: run.accelerator.save_state(disk / "b"),
            "load_state": lambda: run.accelerator.load_state(disk / "good"),
        }
        with pytest.raises(OSError, match="No space left"):
            calls[then]()
        assert not (disk / "a").exists()
        run.accelerator.wait_for_checkpoint()
        run.accelerator.save_state(disk / "c")
        run.accelerator.load_state(disk / "c")
        assert sorted(path.name for path in disk.iterdir()) == ["c", "good"]


SCRIPT = """
import resource, sys, torch
from accelkit import Accelerator
acc = Accelerator()
model = acc.prepare(torch.nn.Linear(300, 300))
if sys.argv[2] == "fail":
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))  # bytes: less than the model
acc.save_state(sys.argv[1], asynchronous=True)
if sys.argv[2] == "raise":
    raise ValueError("the script's own")
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["end", "raise", "fail"])
def test_the_end_of_the_process_waits(tmp_path: Path, how: str) -> None:
    """A script that just ends, or fails, leaves a complete checkpoint; a failed save is told on the way out."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "a"), how],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == int(how == "raise"), done.stderr
    if how == "fail":
        assert f"{tmp_path / 'a'} was not saved: [Errno 27] File too large" in done.stderr
        assert list(tmp_path.iterdir()) == []
        return
    acc = Accelerator()
    acc.prepare(torch.nn.Linear(300, 300))
    acc.load_state(tmp_path / "a")


def test_a_timeout(tmp_path: Path) -> None:
    """A wait with a limit says which checkpoint is not complete."""
    with pytest.raises(TimeoutError, match="somewhere is not complete"):
        SaveHandle(Path("somewhere")).wait(0.01)
    assert issubclass(CheckpointError, RuntimeError)
