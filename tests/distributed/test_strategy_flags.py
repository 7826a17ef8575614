"""One script under every strategy, only flags changed: the same losses, and each goes on from the checkpoint of the one before."""

import json
from pathlib import Path

import pytest

from tests.support.kit import ROOT, kit

SCRIPT = ROOT / "tests" / "distributed" / "strategy_script.py"
FLAGS: dict[str, tuple[int, list[str]]] = {
    "single": (1, []),
    "ddp": (2, ["--strategy", "ddp", "--ddp-static-graph", "--ddp-gradient-as-bucket-view"]),
    "fsdp": (2, ["--strategy", "fsdp", "--fsdp-transformer-cls-names-to-wrap", "Block", "--fsdp-cpu-offload"]),
    "whole": (2, ["--strategy", "fsdp", "--fsdp-min-num-params", "60", "--fsdp-state-dict-type", "FULL_STATE_DICT"]),
    "tp": (2, ["--strategy", "fsdp", "--tp-size", "2"]),
    "hybrid": (4, ["--strategy", "fsdp", "--dp-replicate-size", "2", "--dp-shard-size", "2"]),
}


def run(name: str, tmp_path: Path, load: str, *more: str) -> list[float]:
    """The losses of an epoch under a strategy, from a checkpoint or from the start."""
    ranks, flags = FLAGS[name]
    words = [
        "run",
        "--on",
        "local",
        "--procs-per-node",
        str(ranks),
        *flags,
        *more,
        str(SCRIPT),
        load,
        str(tmp_path / name),
    ]
    done = kit(*words, cwd=tmp_path)
    assert done.code == 0, done.err
    line = next(line for line in done.out.splitlines() if '"losses"' in line)
    found = json.loads(line[line.index("{") :])
    assert found["strategy"] == ("single" if name == "single" else "ddp" if name == "ddp" else "fsdp")
    losses: list[float] = found["losses"]
    return losses


def test_only_flags_change(tmp_path: Path) -> None:
    """Every strategy's first epoch is that of one process, in float32 within 1e-5, and so is the second from another one's checkpoint."""
    first = run("single", tmp_path, "-")
    second = run("single", tmp_path, str(tmp_path / "single"))
    earlier = "single"
    for name in list(FLAGS)[1:]:
        assert run(name, tmp_path, "-") == pytest.approx(first, rel=1e-5), name
        if earlier != "single":
            assert run(name, tmp_path, str(tmp_path / earlier)) == pytest.approx(second, rel=1e-5), (earlier, name)
            assert run(name, tmp_path, "-") == pytest.approx(first, rel=1e-5), name
        earlier = name


def test_precision_and_accumulation_by_flags(tmp_path: Path) -> None:
    """`--precision bf16 --grad-accum-steps 4` under fsdp is near what it is in one process."""
    flags = ("--precision", "bf16", "--grad-accum-steps", "4")
    assert run("fsdp", tmp_path, "-", *flags) == pytest.approx(run("single", tmp_path, "-", *flags), rel=0.03)
