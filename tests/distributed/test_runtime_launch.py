"""The same script under every kind of launch: the same bits, and clean ends."""

from collections.abc import Callable
from pathlib import Path

import pytest

from accelkit.contract import codec
from accelkit.contract.spec import LaunchSpec, Program, RuntimeSettings
from tests.support.ranks import ROOT, free_port, run_ranks

SCRIPT = str(ROOT / "tests/distributed/training_script.py")


def write_spec(folder: Path, settings: RuntimeSettings) -> str:
    """A launch spec as `kit` writes it; what the runtime reads of it are the settings."""
    spec = LaunchSpec(
        run_id="r", nodes=1, procs_per_node=1, master_addr="127.0.0.1", master_port=1, workdir="/", exchange_dir="/",
        output_dir="/", ranks_on_machine=1, program=Program(kind="script", target="t.py"), settings=settings,
    )  # fmt: skip
    codec.write(folder / "spec.json", spec)
    return str(folder / "spec.json")


def metrics_of(folder: Path, launch: Callable[[str], None]) -> str:
    """The metrics file of a launch."""
    folder.mkdir()
    file = folder / "metrics.jsonl"
    launch(str(file))
    return file.read_text()


def succeed(size: int, *arguments: str, **env: str) -> None:
    """Run ranks that must end well and without a word."""
    outcomes = run_ranks(size, *arguments, **env)
    assert [(outcome.code, outcome.output) for outcome in outcomes] == [(0, "")] * size


@pytest.mark.parametrize(("size", "precision"), [(1, "no"), (2, "no"), (2, "bf16")])
def test_every_kind_of_launch_gives_the_same_bits(tmp_path: Path, size: int, precision: str) -> None:
    """Plain processes, torchrun, and a launch spec: every logged number is the same, bit for bit, and repeats."""
    spec = write_spec(tmp_path, RuntimeSettings(deterministic=True, precision=precision, grad_accum_steps=2))
    told = {"KIT_DETERMINISTIC": "1", "KIT_PRECISION": precision, "KIT_GRAD_ACCUM_STEPS": "2"}
    torchrun = ["-W", "ignore", "-m", "torch.distributed.run", f"--nproc-per-node={size}", "--master-addr=127.0.0.1"]

    plain = metrics_of(tmp_path / "a", lambda file: succeed(size, SCRIPT, KIT_METRICS_FILE=file, **told))
    launched = metrics_of(tmp_path / "b", lambda file: succeed(size, SCRIPT, KIT_METRICS_FILE=file, KIT_SPEC=spec))
    run_by_torch = metrics_of(
        tmp_path / "c",
        lambda file: succeed(
            1, *torchrun, f"--master-port={free_port()}", SCRIPT, KIT_METRICS_FILE=file, PYTHONWARNINGS="ignore", **told
        ),
    )

    assert plain == launched == run_by_torch
    assert plain.count("loss") > 8
    assert '"seen": 50' in plain


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_raises_ends_and_the_other_does_not_hang(failing: int) -> None:
    """The failing rank ends at once with its own traceback and code 1; the other ends with an error when it needs it."""
    outcomes = run_ranks(2, SCRIPT, "--fail-on", str(failing), timeout=60)

    assert [outcome.code for outcome in outcomes] == [1, 1]
    assert "ValueError: the script's own mistake" in outcomes[failing].output
    assert max(outcome.seconds for outcome in outcomes) < 45


def test_half_a_world_is_refused_before_anything_starts() -> None:
    """WORLD_SIZE without the rest ends with a message that names what is missing and what to type."""
    (outcome,) = run_ranks(1, SCRIPT, WORLD_SIZE="2", RANK="0")

    assert outcome.code == 1
    assert (
        "WORLD_SIZE=2 says that there are other ranks, but LOCAL_RANK, MASTER_ADDR, MASTER_PORT is not set"
        in outcome.output
    )
    assert "kit run" in outcome.output
