"""Runs on this interpreter at their edges: what others may not end, what may not be lost, what may not be left."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.kit import KIT, ROOT, kit, runs, start, until

SLEEPER = "import os, pathlib, threading\npathlib.Path('up' + os.environ['RANK']).touch()\nthreading.Event().wait()\n"
NO_ENGINE = {"DOCKER_HOST": "unix:///nowhere.sock"}
IGNORES = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"


@pytest.fixture
def sleeper(tmp_path: Path) -> Path:
    """A script that tells it is up, and then does nothing."""
    path = tmp_path / "sleeper.py"
    path.write_text(SLEEPER)
    return path


def record_of(folder: Path) -> Path:
    """The newest run's record."""
    records = (folder / ".accelkit" / "runs").glob("*/record.json")
    return max(records, key=lambda path: float(json.loads(path.read_text())["created_at"]))


def test_a_run_that_somebody_watches_is_never_cleaned(sleeper: Path) -> None:
    """Neither one on a terminal, nor one of another machine, whose record stays as it is; to stop that one is refused by name."""
    folder = sleeper.parent
    process = start("run", "--on", "local", "--interactive", sleeper.name, cwd=folder)
    until((folder / "up0").exists, "the rank is up")
    assert [run["state"] for run in runs(folder)] == ["running"]
    assert "1 still run" in kit("runs", "clean", cwd=folder).err
    assert process.poll() is None

    text = record_of(folder).read_text()
    record = json.loads(text)
    record["supervisor"]["host"] = "another"
    record_of(folder).write_text(json.dumps(record))
    assert [run["state"] for run in runs(folder)] == ["elsewhere"]
    assert "1 still run" in kit("runs", "clean", cwd=folder).err
    refused = kit("runs", "stop", "last", cwd=folder)
    assert (refused.code, "another" in refused.err) == (125, True)
    record_of(folder).write_text(text)

    assert kit("runs", "stop", "last", cwd=folder).code == 0
    assert process.wait(timeout=20) == 143


def test_removed_runs_are_gone_and_living_ones_stay(sleeper: Path) -> None:
    """A run that is not over is refused, and then none of those that were named is removed."""
    folder = sleeper.parent
    (folder / "s.py").write_text("")
    assert kit("run", "--on", "local", "s.py", cwd=folder).code == 0
    ended = runs(folder)[0]["run_id"]
    process = start("run", "--on", "local", sleeper.name, cwd=folder)
    until((folder / "up0").exists, "the rank is up")
    assert kit("runs", "remove", ended, "last", cwd=folder).code == 2
    assert kit("runs", "remove", ended, cwd=folder).code == 0
    assert [run["state"] for run in runs(folder)] == ["running"]
    process.send_signal(signal.SIGINT)
    process.wait(timeout=20)


def test_a_rank_that_left_before_the_failure_is_named(tmp_path: Path) -> None:
    """Rank 1 ends with 0 while the others still want it: the report says so."""
    os.mkfifo(tmp_path / "pid")
    (tmp_path / "s.py").write_text(
        "import os, pathlib, select\nfile = pathlib.Path('pid')\n"
        "if os.environ['RANK'] == '1':\n    file.write_text(str(os.getpid()))\n"
        "else:\n    peer = os.pidfd_open(int(file.read_text()))\n    select.select([peer], [], [])\n    raise ValueError('peer is gone')\n"
    )
    done = kit("run", "--on", "local", "--procs-per-node", "2", "s.py", cwd=tmp_path)
    assert done.code == 1
    assert "rank 1 on node0 had ended" in done.err


def test_a_time_limit_holds_on_a_terminal_too(sleeper: Path) -> None:
    """Exit code 124, as elsewhere."""
    done = kit("run", "--on", "local", "--interactive", "--timeout", "2s", sleeper.name, cwd=sleeper.parent)
    assert done.code == 124
    assert runs(sleeper.parent)[0]["state"] == "timeout"


def test_nothing_stays_of_a_rank_that_had_to_be_killed(tmp_path: Path) -> None:
    """Two Ctrl-C against a rank that ignores the first: the process that it started is gone too."""
    (tmp_path / "deaf.py").write_text(
        f"{IGNORES}import subprocess\nprint(subprocess.Popen(['sleep', '600']).pid, file=open('pid', 'w'), flush=True)\n{SLEEPER}"
    )
    process = start("run", "--on", "local", "deaf.py", cwd=tmp_path)
    until((tmp_path / "up0").exists, "the rank is up")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    process.wait(timeout=20)
    until(lambda: not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists(), "its child is gone", 5.0)


def test_a_failure_is_not_covered_by_the_time_limit(tmp_path: Path) -> None:
    """A rank raises; the other one ignores SIGTERM until the time is up: the exception is why the run failed."""
    (tmp_path / "s.py").write_text(
        f"{IGNORES}import os, threading\nif os.environ['RANK'] == '0': raise ValueError('mine')\nthreading.Event().wait()\n"
    )
    done = kit("run", "--on", "local", "--procs-per-node", "2", "--timeout", "3s", "s.py", cwd=tmp_path)
    assert (done.code, runs(tmp_path)[0]["state"]) == (1, "failed")
    assert "rank 0 on node0 raised ValueError: mine" in done.err


def test_a_script_that_leaves_its_group_behind_ends_well(tmp_path: Path) -> None:
    """Collectives that nobody waited for, no `destroy_process_group`: gloo's threads do not abort the rank on its way out."""
    (tmp_path / "s.py").write_text(
        "import torch\nimport torch.distributed as dist\ndist.init_process_group('gloo')\nfor _ in range(30):\n"
        "    dist.all_gather([torch.empty(1_000_000) for _ in range(2)], torch.ones(1_000_000), async_op=True)\n"
    )
    done = kit("run", "--on", "local", "--procs-per-node", "2", "s.py", cwd=tmp_path)
    assert (done.code, done.out) == (0, ""), done.err


def test_modules_of_the_user_are_not_kits(tmp_path: Path) -> None:
    """A detached run in a folder with files named like the standard library's comes to its end."""
    for name in ("queue", "json", "signal", "secrets"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not me')\n")
    (tmp_path / "s.py").write_text("print('hello')\n")
    command = [str(Path(KIT[0]).parent / "kit"), "run", "--on", "local", "--detach", "s.py"]
    run_id = subprocess.check_output(command, cwd=tmp_path, text=True).strip()
    record = tmp_path / ".accelkit" / "runs" / run_id / "record.json"
    until(lambda: json.loads(record.read_text())["state"] == "ended", "it has ended")
    assert json.loads(record.read_text())["outcome"]["exit_code"] == 0


def test_an_output_that_is_full_costs_the_output(tmp_path: Path) -> None:
    """Standard output cannot be written: one warning, and the run ends well, its log whole."""
    (tmp_path / "s.py").write_text("for i in range(100): print(i)\n")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*KIT, "run", "--on", "local", "s.py"], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr.count("standard output cannot be written")) == (0, 1), done.stderr
    assert runs(tmp_path)[0]["state"] == "ok"
    assert len((record_of(tmp_path).parent / "exchange" / "logs" / "rank-0.log").read_text().splitlines()) == 100


def test_an_end_is_written_whatever_the_run_left(tmp_path: Path) -> None:
    """Lines that are no metrics, a spec that is gone: the run ended well all the same."""
    (tmp_path / "s.py").write_text(
        "import os\nopen(os.environ['KIT_METRICS_FILE'], 'w').write('[1]\\n7\\n')\nos.unlink(os.environ['KIT_SPEC'])\n"
    )
    done = kit("run", "--on", "local", "s.py", cwd=tmp_path)
    assert (done.code, runs(tmp_path)[0]["state"]) == (0, "ok"), done.err


def test_what_cannot_start_leaves_no_entry(tmp_path: Path) -> None:
    """A secret that is not set is refused before anything is there."""
    (tmp_path / "s.py").write_text("")
    assert kit("run", "--on", "local", "--secret", "NOPE", "s.py", cwd=tmp_path).code == 2
    assert runs(tmp_path) == []


def test_a_reproduced_run_has_what_the_recorded_one_had_and_keeps_what_it_wrote(tmp_path: Path) -> None:
    """A variable that is not set any more; an input that it changes is a copy; its outputs are kept; of a killed one nothing stays."""
    (tmp_path / "data").write_text("1")
    (tmp_path / "s.py").write_text(
        "import os, pathlib\nprint(os.environ['WORD'])\nopen('data', 'a').write('2')\n"
        "pathlib.Path('outputs').mkdir(exist_ok=True)\npathlib.Path('outputs/m').write_text(open('data').read())\n"
    )
    words = ["run", "--on", "local", "--env", "WORD", "--input", "data", "--output", "outputs", "s.py"]
    assert kit(*words, cwd=tmp_path, env={"WORD": "hello"}).code == 0
    (tmp_path / "data").write_text("1")
    again = kit("reproduce", "last", "--verify", cwd=tmp_path)

    assert (again.code, "bitwise" in again.out, "hello" in again.out) == (0, True, True), again.err
    assert (tmp_path / "data").read_text() == "1"
    assert (record_of(tmp_path).parent / "workdir" / "outputs" / "m").read_text() == "12"

    (tmp_path / "data").unlink()
    refused = kit("reproduce", "last", cwd=tmp_path)
    assert (refused.code, "inputs: data" in refused.err) == (1, True), refused.err
    assert list((tmp_path / ".accelkit" / "code").iterdir()) == []


def test_what_a_killed_reproduction_laid_out_can_be_cleaned(sleeper: Path) -> None:
    """Its folder and its entry in the list of git's worktrees."""
    folder = sleeper.parent
    for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    process = start("run", "--on", "local", sleeper.name, cwd=folder)
    until((folder / "up0").exists, "the rank is up")
    process.send_signal(signal.SIGINT)
    process.wait(timeout=20)
    again = start("reproduce", "last", cwd=folder)
    until(lambda: any((folder / ".accelkit" / "code").glob("*/up0")), "it is up again")
    again.kill()
    again.wait()
    assert kit("runs", "clean", cwd=folder).code == 0

    assert list((folder / ".accelkit" / "code").iterdir()) == []
    listed = subprocess.check_output(["git", "worktree", "list"], cwd=folder, text=True)
    assert len(listed.splitlines()) == 1


def nodes_in(folder: Path) -> list[int]:
    """Processes of nodes whose working folder this is."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if (
                entry.name.isdigit()
                and (entry / "cwd").resolve() == folder
                and b"kit_boot" in (entry / "cmdline").read_bytes()
            ):
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--on", "local", "gone.py"), 2),
        (("--on", "local", "--no-such-option", "s.py"), 2),
        (("--on", "docker", "s.py", "--on", "local"), None),  # the second is the script's own
        (("--on", "local", "--timeout", "soon", "s.py"), 2),
        (("--on", "local", "--help"), 0),
    ],
)
def test_a_node_that_started_on_a_wrong_guess_ends_and_leaves_nothing(
    tmp_path: Path, words: tuple[str, ...], code: int | None
) -> None:
    """Kit starts a node before it has read the command line; when there is no local run after all, no process and no record stay."""
    (tmp_path / "s.py").write_text("")
    done = kit("run", *words, cwd=tmp_path, env={"DOCKER_HOST": "unix:///nowhere"})

    assert (done.code == code) if code is not None else (done.code != 0)
    until(lambda: not nodes_in(tmp_path), "no node is left", patience=10)
    assert not (tmp_path / ".accelkit").exists()


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_the_guessed_node_is_one_of_those_that_run(tmp_path: Path, nodes: int) -> None:
    """Whatever number of nodes the config asks for: every rank runs once, under the name of the one run there is."""
    (tmp_path / "kit.yaml").write_text(f"run:\n  nodes: {nodes}\n")
    (tmp_path / "s.py").write_text("import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n")
    done = kit("run", "--on", "local", "s.py", cwd=tmp_path)

    assert done.code == 0, done.err
    assert sorted(line.partition("] ")[2] for line in done.out.splitlines()) == [
        f"rank {r} of {nodes}" for r in range(nodes)
    ]
    assert len(runs(tmp_path)) == 1
    until(lambda: not nodes_in(tmp_path), "no node is left", patience=10)


@pytest.mark.parametrize(
    ("statement", "code", "cause"),
    [
        ("sys.exit('no data in folder x')", 1, "SystemExit: no data in folder x at {script}:2 (exit code 1)"),
        ("raise SystemExit([1])", 1, "SystemExit: [1] at {script}:2"),
        ("sys.exit(3)", 3, "exited with code 3"),
        ("sys.exit(None)", 0, None),
    ],
)
def test_a_script_that_exits_with_a_text_says_it_in_the_cause(
    tmp_path: Path, statement: str, code: int, cause: str | None
) -> None:
    """As Python does, a text is printed once and the code is 1; kit's summary and the record hold it with its line."""
    script = tmp_path / "s.py"
    script.write_text(f"import sys\n{statement}\n")
    done = kit("run", "--on", "local", script.name, cwd=tmp_path)

    assert done.code == code
    assert "Traceback" not in done.out + done.err
    if cause is None:
        assert done.err == ""
    else:
        assert cause.format(script=script) in done.err
        assert cause.format(script=script) in kit("runs", "show", "last", cwd=tmp_path).out


def test_what_is_shown_of_a_run_hides_what_is_secret(tmp_path: Path) -> None:
    """As text and as JSON; names that say nothing of a secret are shown."""
    (tmp_path / "s.py").write_text("")
    assert kit("run", "--on", "local", "--env", "API_TOKEN=abc123", "--env", "A=plain", "s.py", cwd=tmp_path).code == 0
    for words in ((), ("--json",)):
        shown = kit("runs", "show", "last", *words, cwd=tmp_path).out
        assert "abc123" not in shown
        assert ("plain" in shown) or not words


def test_a_run_that_is_not_there_is_bad_usage(tmp_path: Path) -> None:
    """Exit code 2, for every command that takes an ID."""
    for command in ("show", "logs", "attach", "stop", "remove"):
        done = kit("runs", command, "nope", cwd=tmp_path)
        assert (done.code, "nope: no such run" in done.err) == (2, True), command


def test_metrics_are_recorded_with_and_without_a_configuration(tmp_path: Path) -> None:
    """`init_trackers` with a config writes that beside them; the last values count, exactly, whatever characters names have."""
    for name, start_line in (("plain", ""), ("config", "a.init_trackers('p', config={'lr': 0.1})")):
        (tmp_path / f"{name}.py").write_text(
            f"from accelkit import Accelerator\na = Accelerator()\n{start_line}\n"
            "for s in range(3):\n    a.log({'loss': s / 3, 'line\\u2028break': s}, step=s)\na.end_training()\n"
        )
        assert kit("run", "--on", "local", f"{name}.py", cwd=tmp_path).code == 0
        metrics = json.loads(record_of(tmp_path).read_text())["metrics"]
        assert metrics["loss"] == {"value": 2 / 3, "hex": (2 / 3).hex(), "step": 2}
        assert metrics["line\u2028break"]["value"] == 2
        assert "bitwise equal: 2 metrics" in kit("reproduce", "last", "--verify", cwd=tmp_path).out


def test_every_change_of_the_tree_is_named_in_words_that_fit(tmp_path: Path) -> None:
    """Recorded and now: new, gone, changed again, put back, committed since; the recorded code is what runs."""
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b")
    names = ("s.py", "same.py", "again.py", "back.py", "removed.py")
    for name in names:
        (tmp_path / name).write_text("print('first')\n")
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "one")):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    for name in ("same.py", "again.py", "back.py", "untracked.py"):
        (tmp_path / name).write_text("print('second')\n")
    assert kit("run", "--on", "local", "s.py", cwd=tmp_path).code == 0
    (tmp_path / "s.py").write_text("print('third')\n")
    (tmp_path / "again.py").write_text("print('third')\n")
    (tmp_path / "back.py").write_text("print('first')\n")
    (tmp_path / "removed.py").unlink()
    (tmp_path / "untracked.py").unlink()
    (tmp_path / "new.py").touch()
    (tmp_path / "sub").mkdir()
    for number in range(12):
        (tmp_path / "sub" / f"{number:02}.py").touch()
    done = kit("reproduce", "last", cwd=tmp_path)

    assert done.out.endswith("first\n")
    head, *told = (line for line in done.err.splitlines() if line.startswith(("  ", "kit: files here")))
    assert "the recorded ones run" in head
    assert [line.strip() for line in told] == [
        "again.py: recorded modified, now otherwise",
        "back.py: recorded modified, now as committed",
        "new.py: recorded not there, now added",
        "removed.py: recorded as committed, now deleted",
        "s.py: recorded as committed, now modified",
        "untracked.py: recorded added, now not there",
        "sub/: 12 files: 00.py, 01.py, 02.py, 03.py, 04.py, 05.py, 06.py, 07.py, 08.py, 09.py and 2 more",
    ]


def test_a_reproduction_finds_the_folder_of_outputs_that_the_run_found(tmp_path: Path) -> None:
    """A script that writes into a folder which was there, and is no code, does so again, and the output is compared."""
    (tmp_path / "outputs").mkdir()
    (tmp_path / "s.py").write_text("open('outputs/d.txt', 'w').write('same')\n")
    assert kit("run", "--on", "local", "s.py", cwd=tmp_path).code == 0
    again = kit("reproduce", "last", "--verify", cwd=tmp_path)
    assert again.code == 0, again.err
    assert "bitwise equal: 0 metrics, 1 output files" in again.out


def test_a_module_that_is_not_there_is_told_with_its_remedy(tmp_path: Path) -> None:
    """The report says where the ranks' packages are; its line begins as every failure's does, and names the logs."""
    (tmp_path / "s.py").write_text("import no_such_module\n")
    done = kit("run", "--on", "local", "s.py", cwd=tmp_path)
    assert done.code == 1
    assert "kit: failed: run " in done.err
    assert f"ranks run on {sys.executable}: install it there" in done.err


def test_clean_says_what_was_left_and_of_whom(tmp_path: Path) -> None:
    """Nothing of runs that ended; the run whose kit was killed by its ID; a run is found by the time in its ID."""
    (tmp_path / "s.py").write_text("import threading\nopen('up', 'w')\nthreading.Event().wait()\n")
    assert kit("run", "--on", "local", "--timeout", "2s", "s.py", cwd=tmp_path).code == 124
    assert "nothing was left (1 runs looked at)" in kit("runs", "clean", cwd=tmp_path, env=NO_ENGINE).err
    (tmp_path / "up").unlink()
    process = start("run", "--on", "local", "s.py", cwd=tmp_path)
    until((tmp_path / "up").exists, "the rank is up")
    process.kill()
    process.wait()
    run_id = runs(tmp_path)[0]["run_id"]
    assert f"removed what was left of {run_id} (2 runs looked at)" in kit("runs", "clean", cwd=tmp_path).err
    assert kit("runs", "show", run_id.split("-")[1], cwd=tmp_path).out.split()[1] == run_id


def test_show_tells_how_a_run_was_started(tmp_path: Path) -> None:
    """`kit runs show` says when a run began, how long it took and what settings it had; not those that nobody gave."""
    (tmp_path / "s.py").write_text("")
    assert kit("run", "--on", "local", "--seed", "7", "--deterministic", "s.py", cwd=tmp_path).code == 0
    shown = dict(line.split(maxsplit=1) for line in kit("runs", "show", "last", cwd=tmp_path).out.splitlines())
    assert shown["seed"] == "7"
    assert shown["deterministic"] == "yes"
    assert shown["strategy"] == "auto"
    assert re.fullmatch(r"\d\d-\d\d \d\d:\d\d", shown["started"])
    assert re.fullmatch(r"[\d.]+ s", shown["took"])
    assert "precision" not in shown
