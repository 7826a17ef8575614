"""The XLA device, run for real on CPUs: one, two and four devices in a process; checkpoints from and for the torch of everything else."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.distributed.strategy_checks import CHECKS
from tests.support.ranks import ROOT, Outcome, run_ranks

PYTHON = os.environ.get("ACCELKIT_XLA_PYTHON", "")
DEVICES = (1, 2, 4)
SUITE = [name for name in CHECKS if name.startswith("check_")]
Found = dict[str, dict[str, str]]

pytestmark = pytest.mark.skipif(
    not PYTHON, reason="ACCELKIT_XLA_PYTHON names no interpreter with torch_xla: ci/test xla"
)


def on_xla(*arguments: str, size: int = 1, python: str = PYTHON, **env: str) -> list[Outcome]:
    """Run Python where XLA is the device."""
    quick = (
        "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"  # compiling is what takes time
    )
    told = {"PJRT_DEVICE": "CPU", "PYTHONWARNINGS": "default", "TF_CPP_MIN_LOG_LEVEL": "2", "XLA_FLAGS": quick, **env}
    return run_ranks(size, *arguments, timeout=500, python=python, **told)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each process found: torch on the CPU saves first and loads last, the devices' processes are between."""
    folder = tmp_path_factory.mktemp("xla")
    results: Found = {}

    def note(outcome: Outcome, *labels: str) -> None:
        for label in labels:
            file = folder / f"{label}-0.json"
            found = json.loads(file.read_text()) if file.exists() else {}
            results[label] = {**found, "output": f"exit code {outcome.code}\n{outcome.output[-3000:]}"}

    note(*run_ranks(1, "-m", "tests.xla.plain_checks", str(folder), "before"), "before")
    for devices in DEVICES:
        outcome = on_xla("-m", "tests.xla.device_checks", str(folder), str(devices), CPU_NUM_DEVICES=str(devices))[0]
        note(outcome, f"own-{devices}", f"suite-{devices}")
    note(*run_ranks(1, "-m", "tests.xla.plain_checks", str(folder), "after"), "after")
    return results


def names_of(path: str) -> list[str]:
    """The checks of a module, which only the other interpreter imports."""
    lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
    return [line.split("(")[0].removeprefix("def ") for line in lines if line.startswith("def check_")]


def case_of(devices: int) -> str:
    """What is tried with as many devices: models are divided among four, and whole on fewer."""
    return "xla-shard" if devices == 4 else "xla"


def holds(found: Found, label: str, key: str) -> None:
    """Fail with what a process said of a check."""
    result = found[label].get(key, "was not reached")
    assert result == "", f"{label}: {result}\n{found[label]['output']}"


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("check", names_of("tests/xla/device_checks.py"))
def test_device(found: Found, devices: int, check: str) -> None:
    """The check, whose docstring says what must hold, holds with as many devices."""
    holds(found, f"own-{devices}", f"{case_of(devices)}:{check}")


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("check", SUITE)
def test_strategy(found: Found, devices: int, check: str) -> None:
    """What must hold of every strategy holds of this one: losses, norms and weights are those of plain torch on the CPU."""
    holds(found, f"suite-{devices}", f"{case_of(devices)}-{devices}:{check}")


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("label", ["before", "after"])
def test_checkpoints_go_both_ways(found: Found, label: str) -> None:
    """The torch of everything else, without XLA, saves what the device loads, and goes on from all that the device has saved."""
    key = {"before": "single:check_round_trip", "after": "single:check_z_other_checkpoints"}[label]
    holds(found, label, key)


def test_several_processes_on_a_cpu_are_refused() -> None:
    """XLA would let each train for itself: every process says so, and none starts."""
    for outcome in on_xla("-c", "from accelkit import Accelerator; Accelerator()", size=2):
        assert outcome.code == 1
        assert "this run has 2 processes, and XLA sees 1" in outcome.output
        assert "CPU_NUM_DEVICES" in outcome.output


def test_a_device_that_is_not_there_is_refused() -> None:
    """Without the library for TPUs the message names the variable, the reason, and what to try."""
    (outcome,) = on_xla("-c", "from accelkit import Accelerator; Accelerator()", PJRT_DEVICE="TPU")
    assert outcome.code == 1
    assert "UnsupportedError: PJRT_DEVICE=TPU" in outcome.output
    assert "libtpu" in outcome.output


def test_torch_xla_that_was_used_before_is_refused() -> None:
    """With several devices one that is in use already would leave the others idle."""
    script = "import torch, torch_xla; torch.ones(1, device=torch_xla.device()); from accelkit import Accelerator; Accelerator()"
    (outcome,) = on_xla("-c", script, CPU_NUM_DEVICES="2")
    assert outcome.code == 1
    assert "make the Accelerator" in outcome.output
    (alone,) = on_xla("-c", script)
    assert alone.code == 0, alone.output


def test_torch_xla_for_another_torch_is_refused(tmp_path: Path) -> None:
    """Both versions are named, and what to install; the variable alone does not load the library."""
    site = next(Path(PYTHON).parents[1].glob("lib/python*/site-packages"))
    for path in [*site.glob("torch_xla*"), *site.glob("_XLAC*")]:
        (tmp_path / path.name).symlink_to(path)
    paths = f"{ROOT}{os.pathsep}{tmp_path}"
    script = "from accelkit import Accelerator; Accelerator()"
    (outcome,) = on_xla("-c", script, python=sys.executable, PYTHONPATH=paths)
    assert outcome.code == 1
    assert "torch_xla 2.9.0 is made for torch 2.9, and this is torch 2." in outcome.output
    assert "pip install" in outcome.output
    (outcome,) = on_xla("-c", script.replace("()", "(cpu=True)"), python=sys.executable, PYTHONPATH=paths)
    assert outcome.code == 0, outcome.output


def test_torch_xla_that_is_missing_is_named() -> None:
    """Asked for by name it is missed; the variable alone changes nothing where it is not installed."""
    script = "from accelkit import Accelerator; Accelerator(strategy='xla')"
    (outcome,) = on_xla("-c", script, python=sys.executable)
    assert outcome.code == 1
    assert "MissingPackageError: the XLA device needs torch_xla" in outcome.output
    (outcome,) = on_xla(
        "-c", "from accelkit import Accelerator; assert Accelerator().device.type == 'cpu'", python=sys.executable
    )
    assert outcome.code == 0, outcome.output


def test_copies_travel_between_processes() -> None:
    """Between processes with a device each, tensors are gathered, reduced and broadcast, and stay where they were."""
    for outcome in on_xla("-m", "tests.xla.carrier_checks", size=2):
        assert outcome.code == 0, outcome.output
