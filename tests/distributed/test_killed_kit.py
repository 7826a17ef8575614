"""A kit that is killed at any moment: what it wrote is valid, and what it started can be found and ended."""

import contextlib
import json
import random
import signal
import subprocess
from pathlib import Path

import pytest

from accelkit.host.launch import compose
from accelkit.host.runs.store import STARTING_FILE, Store
from tests.support.kit import kit, runs, start

ROUNDS = 12
NO_ENGINE = {"DOCKER_HOST": "unix:///nowhere.sock"}
SCRIPT = "import os, time; open(os.environ['KIT_OUTPUT_DIR'] + '/o', 'w').write('x'); time.sleep(0.4)"


@pytest.mark.timeout(400)
def test_records_are_valid_whenever_kit_is_killed(tmp_path: Path) -> None:
    """Every record is there whole or not yet there.

    Kit is killed with -9 at moments spread over a whole run; all of it can be listed, shown and cleaned, and no process is left.
    """
    (tmp_path / "s.py").write_text(SCRIPT)
    moments = random.Random(1234)
    for number in range(ROUNDS):
        process = start("run", "--on", "local", "--procs-per-node", "2", "s.py", cwd=tmp_path)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.6 * (number + moments.random()) / ROUNDS)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    for record in tmp_path.glob(".accelkit/runs/*/record.json"):
        assert json.loads(record.read_text())["version"] == 1
    for entry in runs(tmp_path):
        shown = kit("runs", "show", entry["run_id"], cwd=tmp_path)
        assert shown.code == 0 or "killed before it was written" in shown.err
        assert "Traceback" not in shown.err

    done = kit("runs", "clean", cwd=tmp_path, env=NO_ENGINE)
    assert done.code == 0, done.err
    ids = {path.name for path in tmp_path.glob(".accelkit/runs/*")}
    assert not _processes_of(ids)


def test_what_was_killed_before_its_record_asks_for_an_engine_only_for_containers(tmp_path: Path) -> None:
    """Without an engine, clean fails exactly when containers may be left: once a Compose file lies in the run's folder."""
    store = Store(tmp_path)
    run_dir = store.prepare(store.new_id())
    (run_dir / STARTING_FILE).unlink()
    assert kit("runs", "clean", cwd=tmp_path, env=NO_ENGINE).code == 0

    (run_dir / compose.FILE).write_text("services: {}\n")
    done = kit("runs", "clean", cwd=tmp_path, env=NO_ENGINE)
    assert done.code == 125
    assert "containers of 1 runs may be left" in done.err
    assert kit("runs", "remove", run_dir.name, cwd=tmp_path, env=NO_ENGINE).code == 125
    assert run_dir.is_dir()


def _processes_of(run_ids: set[str]) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(f"KIT_RUN_ID={run_id}".encode() in variables for run_id in run_ids):
            found.append(int(folder.name))
    return found
