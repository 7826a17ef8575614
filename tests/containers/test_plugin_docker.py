"""The pytest plug-in as its users see it: in containers and as local processes, all endings of a test."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.kit import command

MODULE = """
import os

import pytest

two = pytest.mark.ranks(nodes=2, procs_per_node=1)


def test_plain():
    pass


@two
def test_passes(tmp_path):
    assert os.environ["WORLD_SIZE"] == "2"


@two
@pytest.mark.parametrize("x", [1, 2])
def test_asserts(x):
    found = {"x": x}
    assert os.environ["RANK"] == "0" or found == {"x": 1}


@two
def test_skips():
    pytest.skip("not here")


@two
@pytest.mark.xfail
def test_is_expected_to_fail():
    assert False


@two
def test_is_killed():
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), 9)


@two
def test_leaves_without_a_word():
    if os.environ["RANK"] == "1":
        os._exit(0)
"""


@pytest.mark.parametrize("where", ["docker", "local"])
def test_every_ending_of_a_test(tmp_path: Path, where: str) -> None:
    """Passed, failed with the failing rank's assertion, skipped, expected, killed, silent; the next module is not disturbed."""
    (tmp_path / "test_one.py").write_text(MODULE)
    (tmp_path / "test_two.py").write_text("def test_after():\n    pass\n")
    done = command([sys.executable, "-m", "pytest", "-q", "--ranks-on", where, "-p", "no:cacheprovider"], cwd=tmp_path)

    assert "3 failed, 4 passed, 1 skipped, 1 xfailed" in done.out, done.out + done.err
    assert "assert found == {'x': 1}" in done.out or "{'x': 2} == {'x': 1}" in done.out
    assert f"rank 1 on node1, of 2 ranks on {where}" in done.out
    assert "rank 1 on node1 was killed by SIGKILL" in done.out
    assert "rank 1 ended without a report" in done.out
    mounted = ["docker", "ps", "-aq", "--filter", f"volume={tmp_path}"]
    assert subprocess.check_output(mounted, text=True) == ""
