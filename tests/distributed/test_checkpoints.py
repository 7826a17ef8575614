"""Checkpoints of several ranks: resumed runs are the run that never stopped, whatever was killed and however many ranks go on."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.distributed import checkpoint_checks
from tests.support.kit import until
from tests.support.ranks import ROOT, Outcome, free_port, rank_environment, run_ranks

CHECKS = [name for name in vars(checkpoint_checks) if name.startswith("check_")]
KILLS = int(os.environ.get("ACCELKIT_TEST_KILLS", "6"))
"""How often the test below kills a run."""
SCRIPT = ("-m", "tests.distributed.resume_script")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Outcome], list[dict[str, str]]]:
    """What two ranks found in `checkpoint_checks.py`."""
    folder = tmp_path_factory.mktemp("world")
    outcomes = run_ranks(2, "-m", "tests.distributed.checkpoint_checks", str(folder), timeout=150)
    files = [folder / f"{rank}.json" for rank in range(2)]
    return outcomes, [json.loads(file.read_text()) if file.exists() else {} for file in files]


@pytest.mark.parametrize("check", CHECKS)
def test_on_two_ranks(world: tuple[list[Outcome], list[dict[str, str]]], check: str) -> None:
    """The check, whose docstring says what must hold, holds on both ranks."""
    outcomes, found = world

    for rank, results in enumerate(found):
        assert results.get(check) == "", (
            f"rank {rank}: {results.get(check) or 'was not reached'}\n{outcomes[rank].output[-2000:]}"
        )


def test_ranks_leave_quietly(world: tuple[list[Outcome], list[dict[str, str]]]) -> None:
    """All ranks end with exit code 0 and without a word."""
    assert [(outcome.code, outcome.output) for outcome in world[0]] == [(0, "")] * 2


@dataclass(frozen=True)
class Step:
    """What a run logged of one step."""

    loss: str
    samples: tuple[int, ...]


def read(log: Path) -> dict[int, Step]:
    """Each step of a log; a step that was made again must have been the same."""
    steps: dict[int, Step] = {}
    for line in log.read_text().splitlines() if log.exists() else []:
        number, loss, samples = line.split(" ")
        made = Step(loss, tuple(map(int, samples.split(","))))
        assert steps.setdefault(int(number), made) == made, f"step {number} was {steps[int(number)]}, and again {made}"
    return steps


def train(size: int, folder: Path, log: Path, steps: int, **options: str) -> None:
    """Run the script on so many ranks, to its end."""
    more = [
        word for name, value in options.items() if name.islower() for word in (f"--{name.replace('_', '-')}", value)
    ]
    env = {name: value for name, value in options.items() if name.isupper()}
    done = run_ranks(size, *SCRIPT, str(folder), "--steps", str(steps), "--log", str(log), *more, **env)
    assert [rank.code for rank in done] == [0] * size, "\n".join(rank.output for rank in done)


@pytest.fixture(scope="module")
def unstopped(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Step]:
    """The run on two ranks that is never stopped."""
    folder = tmp_path_factory.mktemp("unstopped")
    train(2, folder / "p", folder / "log", 600)
    return read(folder / "log")


@pytest.mark.parametrize(("asynchronous", "stop"), [("no", "13"), ("yes", "22")])
def test_a_resume_on_as_many_ranks(tmp_path: Path, unstopped: dict[int, Step], asynchronous: str, stop: str) -> None:
    """Losses and samples after a resume, within an epoch and at its end, are those of the run that never stopped."""
    train(2, tmp_path, tmp_path / "log", int(stop), save_every=stop, asynchronous=asynchronous)
    train(2, tmp_path, tmp_path / "log", 40)
    steps = read(tmp_path / "log")

    assert steps == {number: unstopped[number] for number in range(1, 41)}


@pytest.mark.parametrize(("saved", "loaded"), [(2, 1), (1, 2), (2, 4)])
def test_a_resume_on_another_number_of_ranks(tmp_path: Path, saved: int, loaded: int) -> None:
    """The second epoch is finished with exactly the samples that it had left, in the order they had; the same again every time."""
    stop, end = 60 // (2 * saved), 88
    train(saved, tmp_path / "p", tmp_path / "log", stop, save_every=str(stop))
    seen = [sample for step in read(tmp_path / "log").values() for sample in step.samples]
    assert len(seen) == 60
    attempts = []
    for attempt in ("one", "two") if loaded == 2 else ("one",):
        shutil.copytree(tmp_path / "p", tmp_path / attempt)
        steps = stop + (end - 60) // (2 * loaded) + 1
        train(loaded, tmp_path / attempt, tmp_path / f"{attempt}.log", steps, PYTHONWARNINGS="default")
        attempts.append(read(tmp_path / f"{attempt}.log"))
    rest = [sample for step in attempts[0].values() for sample in step.samples][: end - 60]

    assert attempts[0] == attempts[-1]
    assert sorted(seen[:44]) == sorted(seen[44:] + rest) == list(range(44))


@dataclass
class Launch:
    """Ranks that are running."""

    ranks: list["subprocess.Popen[bytes]"]

    def kill(self, rank: int) -> None:
        """End one at once, and the others when it has ended, as a launcher does."""
        self.ranks[rank].send_signal(signal.SIGKILL)
        self.ranks[rank].wait()
        for process in self.ranks:
            process.send_signal(signal.SIGKILL)
            process.wait()

    def wait_for_lines(self, log: Path, number: int) -> None:
        """Return when the log has so many lines, or a rank has ended."""
        until(lambda: self.ended or (log.exists() and len(log.read_text().splitlines()) >= number), "steps are made")

    @property
    def ended(self) -> bool:
        """Whether any rank has."""
        return any(process.poll() is not None for process in self.ranks)


def launch(size: int, *arguments: str) -> Launch:
    """Start ranks and leave them running."""
    port = free_port()
    return Launch(
        [
            subprocess.Popen(
                [sys.executable, *SCRIPT, *arguments],
                cwd=ROOT,
                env=rank_environment(rank, size, port),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for rank in range(size)
        ]
    )


@pytest.mark.timeout(120 + 15 * KILLS)
def test_killed_at_any_moment(tmp_path: Path, unstopped: dict[int, Step]) -> None:
    """Whatever rank is killed in the middle of whatever, every step that is ever made is that of the run that never stopped."""
    log = tmp_path / "log"
    chance = random.Random(os.environ.get("ACCELKIT_TEST_SEED", "1"))
    arguments = (str(tmp_path), "--save-every", "1", "--asynchronous", "mixed", "--log", str(log))
    for _ in range(KILLS):
        before = len(read(log))
        running = launch(2, *arguments, "--steps", "100000")
        running.wait_for_lines(log, before + 1)
        with pytest.raises(subprocess.TimeoutExpired):  # it goes on until the moment at which it is killed
            running.ranks[0].wait(chance.uniform(0.0, 0.5))
        running.kill(chance.randrange(2))
    reached = max(read(log))
    train(2, tmp_path, log, reached + 3)

    steps = read(log)
    assert reached + 3 < 600
    assert steps == {number: unstopped[number] for number in range(1, reached + 4)}
