"""The JSON codec: strict both ways."""

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from accelkit.contract import codec
from accelkit.contract.results import RankError, RankResult
from accelkit.contract.spec import LaunchSpec, Program

SPEC = LaunchSpec(
    run_id="r", nodes=2, procs_per_node=3, master_addr="node0", master_port=29500, workdir="/w", exchange_dir="/x",
    output_dir="/o", ranks_on_machine=6, program=Program(kind="script", target="a.py", args=("--b", "ü")), env={"A": "1"},
)  # fmt: skip


def test_a_spec_survives_the_round_trip() -> None:
    """Every field, nested ones and tuples included."""
    assert codec.loads(LaunchSpec, codec.dumps(SPEC)) == SPEC


def test_a_result_with_an_error_survives_the_round_trip() -> None:
    """Optional nested dataclasses come back as themselves."""
    error = RankError(type="ValueError", message="m", traceback="t", file="f", line=1, time=1.5)
    result = RankResult(
        rank=0, local_rank=0, node=0, pid=1, cause="error", exit_code=1, started_at=1, ended_at=2, error=error
    )

    assert codec.loads(RankResult, codec.dumps(result)) == dataclasses.replace(result, started_at=1.0, ended_at=2.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nodes": "2"}, "nodes: must be int"),
        ({"nodes": True}, "nodes: must be int"),
        ({"nope": 1}, "nope: unknown field"),
        ({"program": {"kind": "x", "target": "t"}}, "program.kind: must be one of"),
        ({"program": {"kind": "script"}}, "program.target: missing field"),
        ({"env": {"A": 1}}, "env.A: must be str"),
    ],
)
def test_what_does_not_fit_is_named_by_its_path(change: dict[str, object], words: str) -> None:
    """No field is guessed, dropped or cast."""
    with pytest.raises(codec.CodecError, match=words):
        codec.from_dict(LaunchSpec, {**codec.to_dict(SPEC), **change})


def test_a_kill_while_writing_leaves_a_whole_file(tmp_path: Path) -> None:
    """The old content or the new one, never a part, whenever the writer is killed."""
    path = tmp_path / "f.json"
    script = (
        "import sys; from accelkit.contract import codec\n"
        f"codec.write_text({str(path)!r}, 'x' * 1000000)\nprint('up', flush=True)\n"
        f"while True: codec.write_text({str(path)!r}, 'y' * 1000000); codec.write_text({str(path)!r}, 'x' * 1000000)\n"
    )
    for _ in range(5):
        writer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env={**os.environ})
        assert writer.stdout is not None
        writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()

        assert path.read_text() in ("x" * 1000000, "y" * 1000000)


def test_permissions_are_the_callers_umask_or_those_of_the_file_that_was_there(tmp_path: Path) -> None:
    """What is private stays private; only who says so gives another mode."""
    before = os.umask(0o077)
    try:
        codec.write_text(tmp_path / "new", "x")
        codec.write_text(tmp_path / "shared", "x", mode=0o644)
    finally:
        os.umask(before)
    (tmp_path / "old").write_text("x")
    (tmp_path / "old").chmod(0o640)
    codec.write_text(tmp_path / "old", "y")

    modes = {p.name: p.stat().st_mode & 0o777 for p in tmp_path.iterdir()}
    assert modes == {"new": 0o600, "shared": 0o644, "old": 0o640}
