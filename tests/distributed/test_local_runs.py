"""Whole runs on this interpreter: the digits under python, torchrun and kit; records; signals."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.support.kit import ROOT, Ended, command, dialogue, kit, runs, start, until

DIGITS = ROOT / "examples" / "digits.py"
FIXED = {"KIT_DETERMINISTIC": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
SHORT = ["--epochs", "2"]
NODES = ["--nodes", "2", "--procs-per-node", "1"]


def last_line(done: Ended) -> str:
    """The last line of rank 0, without its prefix."""
    assert done.code == 0, done.err
    return [line.rpartition("] ")[2] for line in done.out.splitlines() if "test accuracy:" in line][-1]


def test_one_rank_of_kit_is_plain_python(tmp_path: Path) -> None:
    """The same bits, and exactly the test images."""
    plain = last_line(command([sys.executable, str(DIGITS), *SHORT], cwd=tmp_path, env=FIXED))
    ours = last_line(kit("run", "--on", "local", "--deterministic", str(DIGITS), *SHORT, cwd=tmp_path))

    assert plain == ours
    assert "of 360)" in plain


def test_two_ranks_of_kit_are_torchrun_and_two_nodes(tmp_path: Path) -> None:
    """Who starts the ranks changes no bit of what they compute."""
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        "--master-addr=127.0.0.1",
        "--master-port=29731",
    ]
    there = last_line(command([*torchrun, str(DIGITS), *SHORT], cwd=tmp_path, env=FIXED))
    ours = last_line(
        kit("run", "--on", "local", "--procs-per-node", "2", "--deterministic", str(DIGITS), *SHORT, cwd=tmp_path)
    )
    nodes = last_line(
        kit(
            "run",
            "--on",
            "local",
            "--nodes",
            "2",
            "--procs-per-node",
            "1",
            "--deterministic",
            str(DIGITS),
            *SHORT,
            cwd=tmp_path,
        )
    )

    assert there == ours == nodes
    assert "of 360)" in ours


def test_two_runs_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Each has its own port, folder and record."""
    words = ["run", "--on", "local", "--procs-per-node", "2", "--deterministic", str(DIGITS), "--epochs", "1"]
    both = [start(*words, cwd=tmp_path) for _ in range(2)]
    outputs = [process.communicate(timeout=240) for process in both]

    assert [p.returncode for p in both] == [0, 0], outputs
    assert len({out.splitlines()[-1] for out, _ in outputs}) == 1
    assert [r["state"] for r in runs(tmp_path)] == ["ok", "ok"]


def test_the_self_test_passes_on_two_ranks(tmp_path: Path) -> None:
    """Collectives, loaders, training, metrics, seeds, failure."""
    done = kit("test", "--on", "local", "--procs-per-node", "2", cwd=tmp_path)

    assert done.code == 0, done.out + done.err
    assert "FAILED" not in done.out


@pytest.fixture
def sleeper(tmp_path: Path) -> Path:
    """A script that tells it is up, and then does nothing."""
    path = tmp_path / "sleeper.py"
    path.write_text(
        "import threading, pathlib, os\npathlib.Path('up' + os.environ['RANK']).touch()\nthreading.Event().wait()\n"
    )
    return path


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_the_run_and_leaves_nothing(sleeper: Path, number: int, code: int) -> None:
    """Every rank is gone when kit is; the record says interrupted."""
    process = start("run", "--on", "local", "--procs-per-node", "2", sleeper.name, cwd=sleeper.parent)
    until(lambda: all((sleeper.parent / f"up{r}").exists() for r in (0, 1)), "both ranks are up")
    process.send_signal(number)
    process.communicate(timeout=20)

    assert process.returncode == code
    [run] = runs(sleeper.parent)
    assert (run["state"], run["exit_code"]) == ("interrupted", code)
    assert not processes_of(run["run_id"])


def test_a_run_whose_kit_was_killed_is_shown_and_can_be_stopped(sleeper: Path) -> None:
    """Its record is valid; stop ends the ranks."""
    process = start("run", "--on", "local", sleeper.name, cwd=sleeper.parent)
    until((sleeper.parent / "up0").exists, "the rank is up")
    process.kill()
    process.communicate()
    [run] = runs(sleeper.parent)

    assert run["state"] == "orphaned"
    assert kit("runs", "stop", "last", cwd=sleeper.parent).code == 0
    assert not processes_of(run["run_id"])
    assert runs(sleeper.parent)[0]["state"] == "stopped"


def test_a_terminal_belongs_to_rank_0(tmp_path: Path) -> None:
    """--interactive: it is asked there, and Ctrl-C is its own affair (a debugger's), not the end of the run."""
    (tmp_path / "asks.py").write_text(
        "try: input('name? ')\nexcept KeyboardInterrupt: print('got', input('again? '))\n"
    )
    says = [("name? ", "\x03"), ("again? ", "bob\n")]
    code, shown = dialogue("run", "--on", "local", "--interactive", "asks.py", cwd=tmp_path, says=says)

    assert (code, "got bob" in shown) == (0, True), shown


def test_a_progress_bar_moves_on_a_terminal_and_is_one_line_elsewhere(tmp_path: Path) -> None:
    """States are shown as they come, each written over by the next; in a pipe only the last one is a line. The line after it is whole."""
    (tmp_path / "bar.py").write_text(
        "import sys, time\nfor i in range(4):\n    print(f'\\r{i} of 3', end='', flush=True)\n    time.sleep(0.2)\n"
        "print()\nprint('done')\n"
    )
    _, shown = dialogue("run", "--on", "local", "bar.py", cwd=tmp_path, says=[])
    piped = kit("run", "--on", "local", "bar.py", cwd=tmp_path)

    assert any(f"[node0 rank0] {i} of 3\r\x1b[K" in shown for i in range(3)), shown
    assert "\x1b[K[node0 rank0] done\r\n" in shown or "\x1b[K[node0 rank0] 3 of 3\r\n[node0 rank0] done\r\n" in shown
    assert piped.out.splitlines() == ["[node0 rank0] 3 of 3", "[node0 rank0] done"]


def test_a_terminal_that_is_gone_ends_what_ran_on_it(sleeper: Path) -> None:
    """SIGHUP to a run on a terminal ends its rank too; the code is 129."""
    process = start("run", "--on", "local", "--interactive", sleeper.name, cwd=sleeper.parent)
    until((sleeper.parent / "up0").exists, "the rank is up")
    process.send_signal(signal.SIGHUP)

    assert process.wait(timeout=20) == 129
    assert not processes_of(runs(sleeper.parent)[0]["run_id"])


def test_a_reader_that_takes_nothing_does_not_keep_kit_from_ending(tmp_path: Path) -> None:
    """Nobody reads its standard output (a pager, a terminal at rest): the ranks wait, and Ctrl-C still ends the run with 130."""
    (tmp_path / "chatty.py").write_text(
        "import pathlib\nfor i in range(10**9):\n    print('x' * 100)\n    if i % 1000 == 0: pathlib.Path('said').write_text(str(i))\n"
    )
    process = start("run", "--on", "local", "chatty.py", cwd=tmp_path)
    said = -1
    while not (tmp_path / "said").exists() or said != int((tmp_path / "said").read_text() or said + 1):
        said = int((tmp_path / "said").read_text()) if (tmp_path / "said").exists() else -1
        time.sleep(1.0)
    process.send_signal(signal.SIGINT)

    assert process.wait(timeout=20) == 130
    [run] = runs(tmp_path)
    assert not processes_of(run["run_id"])


def test_a_time_limit_prints_stacks_and_exits_with_124(sleeper: Path) -> None:
    """Where each rank was is printed before it is stopped."""
    done = kit("run", "--on", "local", "--timeout", "3s", sleeper.name, cwd=sleeper.parent)

    assert done.code == 124
    assert "sleeper.py" in done.err
    assert "--timeout" in done.err


def test_a_detached_run_goes_on_without_us(tmp_path: Path) -> None:
    """Attach follows it to its end and has its exit code."""
    (tmp_path / "s.py").write_text("import sys; print('hello'); sys.exit(5)")
    run_id = kit("run", "--on", "local", "--detach", "s.py", cwd=tmp_path).out.strip()
    done = kit("runs", "attach", run_id, cwd=tmp_path)

    assert done.code == 5
    assert "[node0 rank0] hello" in done.out


def test_secrets_reach_the_script_and_nothing_else(tmp_path: Path) -> None:
    """As a file; not in the record, the plan or the log."""
    (tmp_path / "s.py").write_text("import os; print(len(open(os.environ['KIT_SECRETS_DIR'] + '/TOKEN').read()))")
    done = command_with_secret(tmp_path)

    assert "[node0 rank0] 17" in done.out
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and b"hidden-hidden-hid" in p.read_bytes()]


def command_with_secret(cwd: Path) -> Ended:
    """A run with a secret out of a variable."""
    from tests.support.kit import KIT

    return command(
        [*KIT, "run", "--on", "local", "--secret", "TOKEN", "s.py"], cwd=cwd, env={"TOKEN": "hidden-hidden-hid"}
    )


def processes_of(run_id: str) -> list[str]:
    """Living processes that carry the run's ID."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "environ").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if f"KIT_RUN_ID={run_id}".encode() in text and state != "Z" and int(entry.name) != os.getpid():
            found.append(entry.name)
    return found
