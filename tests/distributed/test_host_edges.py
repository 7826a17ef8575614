"""`kit run` where it is started in unusual ways."""

import contextlib
import json
import os
import shlex
import signal
from pathlib import Path

import pytest

from accelkit.host.launch.events import LINES
from tests.support.kit import KIT, ROOT, command, kit, runs, start, until


def test_nohup_keeps_a_run_from_its_terminals_end(tmp_path: Path) -> None:
    """A caller that ignores SIGHUP, as nohup does, has its run go on; other signals end it as ever."""
    (tmp_path / "s.py").write_text("import pathlib, threading\npathlib.Path('up').touch()\nthreading.Event().wait()\n")
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = start("run", "--on", "local", "s.py", cwd=tmp_path)
    finally:
        signal.signal(signal.SIGHUP, before)
    until((tmp_path / "up").exists, "the rank is up")
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)

    assert process.returncode == 143


def test_a_rank_may_run_pytest_and_kit(tmp_path: Path) -> None:
    """What is not staged is found where accelkit is installed: pytest loads its plug-ins, kit runs again from a rank."""
    (tmp_path / "test_one.py").write_text("def test_one():\n    pass\n")
    code = "from accelkit.host.cli.main import main; main()"
    (tmp_path / "again.py").write_text(
        f"import subprocess, sys\nsys.exit(subprocess.call([sys.executable, '-c', {code!r}, 'run', '--on', 'local', 'inner.py']))\n"
    )
    (tmp_path / "inner.py").write_text(
        "import os\nprint('inner', os.environ['KIT_RUN_ID'], os.environ.get('KIT_SECRETS_DIR'))\n"
    )
    tested = kit("run", "--on", "local", "-m", "pytest", "-q", "test_one.py", cwd=tmp_path)
    nested = kit("run", "--on", "local", "--secret", "TOKEN", "again.py", cwd=tmp_path, env={"TOKEN": "x"})

    assert tested.code == 0, tested.out + tested.err
    assert "1 passed" in tested.out
    assert nested.code == 0, nested.out + nested.err
    inner = next(run for run in runs(tmp_path) if run["command"].endswith("inner.py"))
    assert f"[node0 rank0] inner {inner['run_id']} None" in nested.out


def test_a_safe_path_finds_the_staged_runtime(tmp_path: Path) -> None:
    """PYTHONSAFEPATH: no folder of modules is lost, and the script's own is left out, as Python does."""
    (tmp_path / "s.py").write_text(
        "import sys, accelkit\nfrom accelkit.runtime import env\nprint(accelkit.__file__)\nassert sys.path[0] != __file__[:-5]\n"
    )
    done = kit(
        "run", "--on", "local", "s.py", cwd=tmp_path, env={"PYTHONSAFEPATH": "1", "XDG_CACHE_HOME": str(tmp_path)}
    )

    assert done.code == 0, done.err
    assert f"] {tmp_path}/accelkit/runtime/" in done.out


def test_credentials_are_neither_shown_nor_recorded_with_a_run(tmp_path: Path) -> None:
    """The login of a package index is no run's business; what looks secret among the variables is masked where it is shown."""
    (tmp_path / "s.py").write_text("")
    (tmp_path / "kit.yaml").write_text("version: 1\nbuild:\n  index_url: https://me:hunter2@index/simple\n")
    words = ["run", "--on", "local", "--env", "AWS_*", "--env", "MY_TOKEN=hunter2"]
    env = {"AWS_SECRET_ACCESS_KEY": "hunter2", "AWS_REGION": "north"}
    dry = kit(*words, "--dry-run", "s.py", cwd=tmp_path, env=env)
    shown = kit("config", "show", cwd=tmp_path)
    done = kit("run", "--on", "local", "s.py", cwd=tmp_path)

    assert "north" in dry.out
    assert '"AWS_SECRET_ACCESS_KEY": "***"' in dry.out
    assert "https://***@index/simple" in shown.out
    assert done.code == 0, done.err
    records = [p for p in tmp_path.rglob(".accelkit/runs/**/*") if p.is_file()]
    assert [p for p in records if b"hunter2" in p.read_bytes()] == []
    assert "hunter2" not in dry.out + shown.out


def test_a_config_that_is_a_link_or_private_stays_so(tmp_path: Path) -> None:
    """--force replaces the content alone."""
    (tmp_path / "real.yaml").write_text("version: 1\n")
    (tmp_path / "real.yaml").chmod(0o600)
    (tmp_path / "kit.yaml").symlink_to("real.yaml")
    done = kit("config", "default", "--project", "--force", cwd=tmp_path)

    assert done.code == 0, done.err
    assert (tmp_path / "kit.yaml").is_symlink()
    assert "run:" in (tmp_path / "real.yaml").read_text()
    assert (tmp_path / "real.yaml").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("streams", [">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full 2>/dev/full"])
def test_streams_that_are_closed_or_full_hold_up_no_run(tmp_path: Path, streams: str) -> None:
    """Nobody sees the lines, also more of them than kit lets wait; the run ends as ever and its log is whole."""
    (tmp_path / "s.py").write_text(f"for i in range({LINES + 5000}):\n    print(i)\n")
    words = shlex.join([*KIT, "run", "--on", "local", "s.py"])
    done = command(["sh", "-c", f"exec {words} {streams}"], cwd=tmp_path)

    assert done.code == 0, done.err
    log = next(tmp_path.glob(".accelkit/runs/*/exchange/logs/rank-0.log"))
    assert log.read_text().splitlines()[-1] == str(LINES + 4999)
    assert "Traceback" not in done.err


def test_a_folder_that_is_gone_is_told_of(tmp_path: Path) -> None:
    """Also with what makes kit start nodes before it reads its command line."""
    argv = ["sh", "-c", f"rmdir {tmp_path}/gone; exec {shlex.join([*KIT, 'run', '--on', 'local', 's.py'])}"]
    (tmp_path / "gone").mkdir()
    done = command(argv, cwd=tmp_path / "gone")

    assert done.code == 2
    assert "the current folder is not there any more" in done.err
    assert "Traceback" not in done.err


def test_folders_may_have_any_name(tmp_path: Path) -> None:
    """Blanks, dollars, and bytes that are no text."""
    folder = tmp_path / os.fsdecode(b"a $HOME \xff")
    folder.mkdir()
    (folder / "s.py").write_text("print('here')\n")
    done = kit("run", "--on", "local", "--nodes", "2", "s.py", cwd=folder)

    assert done.code == 0, done.err
    assert done.out.count("here") == 2


def test_an_exception_without_a_text_is_reported_all_the_same(tmp_path: Path) -> None:
    """An exception whose __str__ fails is named with its place, and its traceback is the script's alone."""
    (tmp_path / "s.py").write_text(
        "class Odd(Exception):\n    def __str__(self):\n        raise RuntimeError('no')\nraise Odd\n"
    )
    done = kit("run", "--on", "local", "s.py", cwd=tmp_path)

    assert done.code == 1
    assert f"Odd: (its text cannot be made) at {tmp_path}/s.py:4" in done.err
    assert "rank_main" not in done.err


def test_numbers_that_are_none_are_wrong_input(tmp_path: Path) -> None:
    """What looks like a number and is none, and a time that no clock counts."""
    (tmp_path / "s.py").write_text("")
    seeds = [kit("run", "--on", "local", "s.py", cwd=tmp_path, env={"KIT_SEED": text}) for text in ("--5", "\u00b2")]
    late = kit("run", "--on", "local", "--timeout", "9999999h", "s.py", cwd=tmp_path)

    for done in seeds:
        assert done.code == 2
        assert "KIT_SEED: run.seed is" in done.err
    assert late.code == 2
    assert "'9999999h' is too long; allowed is up to" in late.err


def test_two_runs_are_told_apart(tmp_path: Path) -> None:
    """`kit runs diff` names what went in and what came out otherwise, shows no secret, and exits with 1; nothing for a run and itself."""
    (tmp_path / "s.py").write_text(
        "import os\nopen(os.environ['KIT_OUTPUT_DIR'] + '/o', 'w').write(os.environ['API_KEY'])\n"
    )
    for key, seed in (("hush", "1"), ("hushed", "2")):
        done = kit("run", "--on", "local", "--env", f"API_KEY={key}", "--seed", seed, "s.py", cwd=tmp_path)
        assert done.code == 0, done.err
        (tmp_path / "s.py").write_text((tmp_path / "s.py").read_text() + "# more\n")
    second, first = (run["run_id"] for run in runs(tmp_path))

    told = kit("runs", "diff", first, second, "--json", cwd=tmp_path)
    assert told.code == 1
    assert "hush" not in told.out
    found = {(row["kind"], row["what"]): (row["first"], row["second"]) for row in json.loads(told.out)}
    assert found["config", "run.seed"] == ("1", "2")
    assert found["seeds", "seed"] == ("1", "2")
    assert {("command", "kit"), ("code", "s.py"), ("environment", "API_KEY"), ("outputs", "o")} <= found.keys()
    assert {kind for kind, _ in found} == {"command", "config", "code", "environment", "seeds", "outputs"}
    assert "run.seed" in kit("runs", "diff", first, second, cwd=tmp_path).out

    same = kit("runs", "diff", first, "last", cwd=tmp_path), kit("runs", "diff", first, first, cwd=tmp_path)
    assert [done.code for done in same] == [1, 0]
    assert "all in common" in same[1].err


def test_followed_logs_have_whole_characters(tmp_path: Path) -> None:
    """Also where a rank had written half of one when its log was read."""
    (tmp_path / "s.py").write_text(
        "import os, time\nfor part in (b'caf\\xc3', b'\\xa9\\n'):\n    os.write(1, part)\n    time.sleep(1)\n"
    )
    assert kit("run", "--on", "local", "--detach", "s.py", cwd=tmp_path).code == 0
    followed = kit("runs", "attach", "last", cwd=tmp_path)

    assert followed.code == 0, followed.err
    assert followed.out == "[node0 rank0] caf\u00e9\n"


def test_ctrl_c_while_a_run_is_detached_ends_it(tmp_path: Path) -> None:
    """Nobody was told of the run yet: its supervisor goes, no secret stays, and its record says that it was stopped."""
    (tmp_path / "s.py").write_text("import threading\nthreading.Event().wait()\n")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "import sys, threading\nif 'accelkit.host.launch.detached' in sys.orig_argv: threading.Event().wait()\n"
    )
    env = {"PYTHONPATH": f"{ROOT}:{tmp_path}/site", "XDG_RUNTIME_DIR": str(tmp_path / "runtime"), "TOKEN": "x"}
    process = start("run", "--on", "local", "--detach", "--secret", "TOKEN", "s.py", cwd=tmp_path, env=env)
    until(lambda: bool(list(tmp_path.glob(".accelkit/runs/*/kit.log"))), "the supervisor is started")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)

    assert process.returncode == 130
    assert [run["state"] for run in runs(tmp_path)] == ["stopped"]
    assert [p for p in (tmp_path / "runtime").rglob("*") if p.is_file()] == []
    run_dir = next(tmp_path.glob(".accelkit/runs/*"))
    until(lambda: not processes_that_name(str(run_dir)), "its supervisor is gone", patience=5)


def processes_that_name(word: str) -> list[str]:
    """Processes with a word in their command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if word.encode() in (folder / "cmdline").read_bytes():
                found.append(folder.name)
    return found
