"""The pytest plug-in as its users see it, on local ranks: how tests import, what markers may say, what is kept of a run."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.kit import Ended, _env, command, kit, runs, until

PYTEST = [sys.executable, "-m", "pytest", "-q", "--ranks-on", "local", "-p", "no:cacheprovider"]


def session(folder: Path, *words: str) -> Ended:
    """A session in a folder."""
    return command([*PYTEST, *words], cwd=folder)


def test_a_test_imports_its_neighbours_as_it_does_outside(tmp_path: Path) -> None:
    """Pytest's default puts the test's own folder on the path; so it is on the ranks."""
    (tmp_path / "helper.py").write_text("X = 2\n")
    (tmp_path / "test_one.py").write_text(
        "import os, pytest\nfrom helper import X\n\n@pytest.mark.ranks\ndef test_one():\n    assert os.environ['WORLD_SIZE'] == str(X)\n"
    )
    done = session(tmp_path)

    assert "1 passed" in done.out, done.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("3", "ranks(3): its arguments have names"),
        ("nodes=0", "run.nodes is 0; allowed: a whole number from 1"),
        ("procs_per_node='two'", "run.procs_per_node is 'two'"),
        ("timeout='soon'", "'soon' is not a duration"),
        ("env=[3]", "run.env is [3"),
        ("node=1", "ranks(node=...): unknown; allowed are"),
    ],
)
def test_a_marker_that_cannot_be_is_the_tests_failure(tmp_path: Path, arguments: str, words: str) -> None:
    """It says what is wrong; nothing is started, and the session goes on."""
    (tmp_path / "test_one.py").write_text(
        f"import pytest\n\n@pytest.mark.ranks({arguments})\ndef test_one():\n    pass\n\ndef test_two():\n    pass\n"
    )
    done = session(tmp_path)

    assert "1 failed, 1 passed" in done.out, done.out
    assert words in done.out
    assert not (tmp_path / ".accelkit").exists()


def test_the_run_of_a_failed_test_is_kept_until_it_is_run_again(tmp_path: Path) -> None:
    """Its record, its logs and each rank's tmp_path lie where those of any run do; of a test that passes nothing stays."""
    test = tmp_path / "test_one.py"
    test.write_text(
        "import os, pytest\n\n@pytest.mark.ranks\ndef test_bad(tmp_path):\n    (tmp_path / f'of {os.environ[\"RANK\"]}').touch()\n"
        "    assert False\n\n@pytest.mark.ranks\ndef test_good(tmp_path):\n    pass\n"
    )
    done = session(tmp_path)
    [kept] = runs(tmp_path)

    assert "1 failed, 1 passed" in done.out, done.out
    assert (kept["command"], kept["state"]) == ("pytest test_one.py::test_bad", "failed")
    assert f".accelkit/runs/{kept['run_id']}" in done.out
    folder = tmp_path / ".accelkit" / "runs" / kept["run_id"]
    assert list(folder.rglob("rank-0.log"))
    assert {path.parts[-3] for path in folder.rglob("of ?")} >= {"tmp-of-rank-0"}
    test.write_text(test.read_text().replace("assert False", "pass"))
    assert "2 passed" in session(tmp_path).out
    assert runs(tmp_path) == []


def test_what_a_killed_session_leaves_is_found_and_ended(tmp_path: Path) -> None:
    """Kit sees the run; the next session of this folder ends it."""
    (tmp_path / "test_one.py").write_text(
        "import os, pathlib, pytest, threading\n\n@pytest.mark.ranks(procs_per_node=1)\ndef test_long():\n"
        "    pathlib.Path('pid').write_text(str(os.getpid()))\n    threading.Event().wait()\n\n"
        "@pytest.mark.ranks\ndef test_other():\n    pass\n"
    )
    left = subprocess.Popen([*PYTEST, "-k", "long"], cwd=tmp_path, env=_env(None), stdout=subprocess.DEVNULL)
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "", "the test is up")
    pid = int((tmp_path / "pid").read_text())
    left.kill()
    left.wait()

    assert [run["state"] for run in runs(tmp_path)] == ["orphaned"]
    assert "1 passed" in session(tmp_path, "-k", "other").out
    until(lambda: not Path(f"/proc/{pid}").exists(), "its rank is gone", patience=10)
    assert kit("runs", "clean", cwd=tmp_path).code == 0
