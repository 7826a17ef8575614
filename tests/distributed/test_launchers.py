"""Ranks started from a running process: they work together, their errors arrive, nothing is left behind."""

import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from accelkit import (
    Accelerator,
    AcceleratorState,
    PartialState,
    RankFailedError,
    SettingError,
    UnsupportedError,
    debug_launcher,
    notebook_launcher,
)
from accelkit.utils import PrepareForLaunch
from tests.support.kit import until

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No state of another test before, and no process after."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    assert multiprocessing.active_children() == []
    assert PartialState.current() is None
    assert "RANK" not in os.environ


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_work_together(size: int, tmp_path: Path) -> None:
    """Each rank of both launchers gathers what all bring; the function is a closure, arguments arrive as they are."""

    def work(folder: Path, *, launcher: str = "") -> None:
        acc = Accelerator()
        found = acc.gather(torch.tensor([acc.process_index])).tolist()
        (folder / f"{launcher}{acc.process_index}").write_text(f"{found} {acc.device.type} {torch.get_num_threads()}")

    for name, launch in (("n", notebook_launcher), ("d", debug_launcher)):
        launch(lambda folder, name=name: work(folder, launcher=name), (tmp_path,), num_processes=size)
    for path in tmp_path.iterdir():
        assert path.read_text() == f"{list(range(size))} cpu 1"
    assert len(list(tmp_path.iterdir())) == 2 * size


def test_the_debug_launcher_makes_the_group_first(tmp_path: Path) -> None:
    """It is there before the function does anything, on the CPU, and also for one rank alone."""

    def look() -> None:
        state = PartialState.current()
        assert state is not None
        (tmp_path / str(state.process_index)).write_text(f"{torch.distributed.is_initialized()} {state.device}")

    debug_launcher(look)
    assert sorted(path.read_text() for path in tmp_path.iterdir()) == ["True cpu", "True cpu"]
    debug_launcher(look, num_processes=1)
    assert (tmp_path / "0").read_text() == "False cpu"


def fail_here(rank: int) -> None:
    """One rank fails, the others would wait for ever."""
    acc = Accelerator()
    if acc.process_index == rank:
        raise ZeroDivisionError(f"rank {rank} is to blame")
    acc.wait_for_everyone()
    threading.Event().wait()


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_the_error_of_a_rank_arrives(rank: int) -> None:
    """The first failure is the one that is told, with its type, message and traceback; those that wait for it are ended."""
    with pytest.raises(
        RankFailedError, match=rf"rank {rank} of 3 failed: ZeroDivisionError: rank {rank} is to blame"
    ) as caught:
        notebook_launcher(fail_here, (rank,), num_processes=3)

    assert "in fail_here" in str(caught.value)
    assert 'raise ZeroDivisionError(f"rank {rank} is to blame")' in str(caught.value)


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "rank 1 of 2 was killed by SIGKILL"),
        (lambda: os._exit(7), "rank 1 of 2 ended with exit code 7"),
        (lambda: sys.exit("enough"), "rank 1 of 2 failed: SystemExit: enough"),
    ],
)
def test_a_rank_that_ends_otherwise(end: Callable[[], Any], said: str) -> None:
    """Signals, exit codes and sys.exit are told as such, also when the others then lose their connection."""

    def work() -> None:
        acc = Accelerator()
        acc.wait_for_everyone()
        if acc.process_index == 1:
            end()
        acc.wait_for_everyone()

    with pytest.raises(RankFailedError, match=said):
        notebook_launcher(work, num_processes=2)


def test_nothing_is_left_of_a_launch(tmp_path: Path) -> None:
    """A rank that ignores SIGTERM, and what ranks have started, are gone when the launcher is: after a failure and after success."""

    def work(fails: bool) -> None:
        acc = Accelerator()
        child = subprocess.Popen(["sleep", "1000"])
        (tmp_path / f"{acc.process_index}").write_text(f"{os.getpid()} {child.pid}")
        acc.wait_for_everyone()
        if fails and acc.process_index == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            threading.Event().wait()
        if fails:
            raise ValueError("enough")

    notebook_launcher(work, (False,), num_processes=2)
    first = [int(pid) for path in tmp_path.iterdir() for pid in path.read_text().split()]
    with pytest.raises(RankFailedError, match="rank 1 of 2 failed: ValueError: enough"):
        notebook_launcher(work, (True,), num_processes=2)
    second = [int(pid) for path in tmp_path.iterdir() for pid in path.read_text().split()]
    assert len({*first, *second}) == 8
    wait_until_gone([*first, *second])


def wait_until_gone(pids: list[int]) -> None:
    """Return when none of the processes is alive any more; a zombie, that its own parent has not reaped, is not."""
    until(lambda: not any(is_alive(pid) for pid in pids), "all are gone")


def is_alive(pid: int) -> bool:
    """Whether a process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_leaving_without_an_error() -> None:
    """sys.exit() of a rank is its end, not a failure."""
    debug_launcher(sys.exit)


def test_one_process_is_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is started; errors pass as they are; the precision is that of the block only."""
    seen: list[Any] = []

    def work(x: int) -> None:
        seen.append((os.getpid(), x, os.environ.get("KIT_PRECISION")))

    monkeypatch.delenv("KIT_PRECISION", raising=False)
    notebook_launcher(work, (3,), num_processes=1, mixed_precision="bf16")
    notebook_launcher(work, (4,), num_processes=1)
    assert seen == [(os.getpid(), 3, "bf16"), (os.getpid(), 4, None)]
    with pytest.raises(ZeroDivisionError):
        notebook_launcher(lambda: 1 / 0, num_processes=1)


def test_precision_reaches_the_ranks() -> None:
    """An Accelerator that names none has it."""

    def work() -> None:
        assert Accelerator().mixed_precision == "bf16"

    notebook_launcher(work, num_processes=2, mixed_precision="bf16")


def test_restarts(tmp_path: Path) -> None:
    """All ranks start again after a failure, as often as allowed, with a warning each; then the error is told."""

    def work() -> None:
        acc = Accelerator()
        acc.wait_for_everyone()
        tries = tmp_path / f"{acc.process_index}"
        tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
        if acc.process_index == 1 and len(tries.read_text()) < 3:
            raise ValueError("not yet")

    with pytest.warns(UserWarning, match="restart") as warned:
        notebook_launcher(work, num_processes=2, max_restarts=2)
    assert [str(w.message) for w in warned] == [
        f"restart {n} of 2: rank 1 of 2 failed: ValueError: not yet" for n in (1, 2)
    ]
    (tmp_path / "1").unlink()
    with pytest.raises(RankFailedError, match="not yet"):
        notebook_launcher(work, num_processes=2)


def test_ports() -> None:
    """A port that is taken is refused by name; one that is free is used; without one a free one is found and kept."""
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        with pytest.raises(SettingError, match=f"use_port={taken.getsockname()[1]}: Address already in use"):
            notebook_launcher(Accelerator, num_processes=2, use_port=str(taken.getsockname()[1]))
        free = taken.getsockname()[1]

    def work(port: str) -> None:
        assert os.environ["MASTER_PORT"] == port
        Accelerator().wait_for_everyone()

    notebook_launcher(work, (str(free),), num_processes=2, use_port=free)


def test_what_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reason is named, with what to do."""
    for arguments, said in (
        ({}, "num_processes is missing"),
        ({"num_processes": 0}, "num_processes=0, node_rank=0, num_nodes=1: no such ranks"),
        ({"num_processes": 2, "node_rank": 2, "num_nodes": 2}, "node_rank=2, num_nodes=2: no such ranks"),
    ):
        with pytest.raises(ValueError, match=said):
            notebook_launcher(print, **arguments)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="rdzv_backend='c10d' is not available"):
        notebook_launcher(print, num_processes=2, num_nodes=2, rdzv_backend="c10d")
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_initialized", lambda: True)
        with pytest.raises(UnsupportedError, match=r"CUDA is already initialized(?s:.*)restart the notebook's kernel"):
            notebook_launcher(print, num_processes=2)
    Accelerator()
    with pytest.raises(ValueError, match=r"an Accelerator .* exists already"):
        debug_launcher(print)
    AcceleratorState._reset_state(reset_partial_state=True)


def join_world(folder: Path) -> None:
    """Say who one is, and meet the others."""
    state = PartialState.current()
    assert (state is not None) == (folder.name == "debug")
    acc = Accelerator(cpu=True)
    found = acc.gather(torch.tensor([acc.process_index])).tolist()
    (folder / str(acc.process_index)).write_text(f"{found} {acc.local_process_index} {PartialState().fork_launched}")
    acc.end_training()


@pytest.mark.parametrize("debug", [True, False])
def test_a_function_prepared_for_other_launchers(debug: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can be pickled, tells each process of the second node which rank it is, and makes the group first where asked."""
    folder = tmp_path / ("debug" if debug else "plain")
    folder.mkdir()
    function = pickle.loads(pickle.dumps(PrepareForLaunch(join_world, distributed_type="MULTI_CPU", debug=debug)))
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", 0))
        told = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(holder.getsockname()[1])}
        for name, value in {**told, "NPROC": "1"}.items():
            monkeypatch.setenv(name, value)
        context, ranks = multiprocessing.get_context("fork"), []
        for node in range(2):
            monkeypatch.setenv("NODE_RANK", str(node))
            ranks.append(context.Process(target=function, args=(0, folder)))
            ranks[-1].start()
        for rank in ranks:
            rank.join()
    assert [rank.exitcode for rank in ranks] == [0, 0]
    assert [(folder / str(rank)).read_text() for rank in range(2)] == ["[0, 1] 0 True"] * 2


INTERACTIVE = """
from accelkit import Accelerator, notebook_launcher
import torch
torch.ones(300, 300) @ torch.ones(300, 300)
def train(text):
    acc = Accelerator()
    big = torch.ones(300, 300) @ torch.ones(300, 300)
    acc.print(text, acc.reduce(torch.tensor(acc.process_index + 1)).item(), int(big[0, 0]), flush=True)
GUARD
"""


@pytest.mark.parametrize("how", ["script", "typed in"])
def test_from_a_script_and_without_a_file(how: str, tmp_path: Path) -> None:
    """A script that guards its start by __name__, and code that is in no file, after this process has computed on many threads."""
    call = 'notebook_launcher(train, ("sum",), num_processes=2)'
    guarded = f'if __name__ == "__main__":\n    {call}' if how == "script" else call
    code = INTERACTIVE.replace("GUARD", guarded)
    (tmp_path / "script.py").write_text(code)
    done = subprocess.run(
        [sys.executable, *([str(tmp_path / "script.py")] if how == "script" else ["-"])],
        input=None if how == "script" else code,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )

    assert (done.returncode, done.stdout.split()) == (0, ["sum", "3", "300"]), done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_ranks_end_with_the_process_that_launched_them(number: signal.Signals, tmp_path: Path) -> None:
    """A kernel that is killed leaves no rank behind, nor one whose launch is interrupted."""
    code = """
import os, pathlib, sys, threading
from accelkit import notebook_launcher
def work():
    path = pathlib.Path(sys.argv[1], os.environ["RANK"])
    path.with_suffix(".new").write_text(str(os.getpid()))
    path.with_suffix(".new").rename(path)
    threading.Event().wait()
notebook_launcher(work, num_processes=2)
"""
    kernel = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env={**os.environ, "PYTHONPATH": str(ROOT)})
    files = [tmp_path / "0", tmp_path / "1"]
    until(lambda: kernel.poll() is not None or all(file.exists() for file in files), "both ranks are up")
    kernel.send_signal(number)
    kernel.wait()
    wait_until_gone([int(file.read_text()) for file in files])
