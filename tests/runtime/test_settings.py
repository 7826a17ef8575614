"""Where settings come from: the environment, the launch spec, the script; and what is refused."""

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from accelkit.contract import codec
from accelkit.contract.spec import LaunchSpec, Program, RuntimeSettings
from accelkit.runtime import choices, env, settings, strategies
from accelkit.runtime.errors import SettingError

RANK = {"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1"}


def choose(told: RuntimeSettings, *, warn: bool = True, **given: Any) -> choices.Choices:
    """The settings in force for a script that gives some."""
    names = ("strategy", "precision", "grad_accum_steps", "seed", "deterministic")
    defaults = env.Defaults(settings=told, source="the launch (spec.json)")
    return choices.choose(defaults, warn=warn, **{name: given.get(name) for name in names})


def test_without_a_world_the_process_is_alone() -> None:
    """No WORLD_SIZE, or one of 1: rank 0 of 1, whatever else is set."""
    assert env.read_world({}) == env.World()
    assert env.read_world({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}) == env.World()


def test_the_world_is_believed() -> None:
    """WORLD_SIZE, RANK and LOCAL_RANK are taken as they are told."""
    assert env.read_world(RANK) == env.World(rank=1, size=2, local_rank=0)


@pytest.mark.parametrize("missing", ["RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"])
def test_half_a_world_is_refused(missing: str) -> None:
    """A variable without which other ranks cannot be found is named."""
    with pytest.raises(SettingError, match=rf"WORLD_SIZE=2 .* but {missing} is not set"):
        env.read_world({name: value for name, value in RANK.items() if name != missing})


@pytest.mark.parametrize("wrong", [{"RANK": "2"}, {"RANK": "-1"}, {"WORLD_SIZE": "x"}, {"WORLD_SIZE": "0"}])
def test_impossible_ranks_are_refused(wrong: dict[str, str]) -> None:
    """A rank outside the world, or what is no number."""
    with pytest.raises(SettingError, match=r"no such rank|whole number"):
        env.read_world(RANK | wrong)


def test_variables_become_settings() -> None:
    """The KIT_* variables give defaults; what they cannot be is refused by name."""
    told = env.read_defaults({"KIT_PRECISION": "bf16", "KIT_SEED": "7", "KIT_DETERMINISTIC": "yes"}).settings

    assert told == RuntimeSettings(precision="bf16", seed=7, deterministic=True)
    assert env.read_defaults({}).settings == RuntimeSettings()
    with pytest.raises(SettingError, match=r"KIT_DETERMINISTIC='maybe': must be one of 1, true"):
        env.read_defaults({"KIT_DETERMINISTIC": "maybe"})
    with pytest.raises(SettingError, match="KIT_SEED='x'"):
        env.read_defaults({"KIT_SEED": "x"})


def test_a_spec_is_read_instead_of_variables(tmp_path: Path) -> None:
    """KIT_SPEC names a file whose settings count alone; a file that is missing or wrong is named."""
    spec = LaunchSpec(
        run_id="r", nodes=1, procs_per_node=1, master_addr="127.0.0.1", master_port=1, workdir="/", exchange_dir="/",
        output_dir="/", ranks_on_machine=1, program=Program(kind="script", target="t.py"),
        settings=RuntimeSettings(strategy="ddp", grad_accum_steps=3),
    )  # fmt: skip
    codec.write(tmp_path / "spec.json", spec)
    told = env.read_defaults({"KIT_SPEC": str(tmp_path / "spec.json"), "KIT_SEED": "7"})

    assert told.settings == spec.settings
    assert str(tmp_path) in told.source
    with pytest.raises(SettingError, match=r"absent.json"):
        env.read_defaults({"KIT_SPEC": str(tmp_path / "absent.json")})
    (tmp_path / "spec.json").write_text("{}")
    with pytest.raises(SettingError, match="missing field"):
        env.read_defaults({"KIT_SPEC": str(tmp_path / "spec.json")})


def test_the_script_wins_with_one_warning_that_names_both() -> None:
    """Explicit arguments overrule the launch; all that differ stand in one warning, with both values and the source."""
    told = RuntimeSettings(strategy="ddp", precision="bf16", grad_accum_steps=4, seed=1)
    with pytest.warns(UserWarning, match="wins over") as caught:
        chosen = choose(told, precision="no", grad_accum_steps=1, seed=1)

    assert chosen == choices.Choices(strategy="ddp", precision="no", grad_accum_steps=1, seed=1, deterministic=False)
    assert len(caught) == 1
    text = str(caught[0].message)
    for part in (
        "mixed_precision='no' (not 'bf16')",
        "gradient_accumulation_steps=1 (not 4)",
        "the launch (spec.json)",
    ):
        assert part in text
    assert "seed" not in text


def test_agreement_and_silence_are_not_warned_about() -> None:
    """Nothing given, the same given, or nothing told: no warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose(RuntimeSettings(precision="bf16"), precision="bf16").precision == "bf16"
        assert choose(RuntimeSettings(), precision="bf16", strategy="single").precision == "bf16"
        assert choose(RuntimeSettings(precision="bf16"), precision="no", warn=False).precision == "no"


def test_a_deterministic_run_has_a_seed() -> None:
    """0 where none is given; without determinism there is none."""
    assert choose(RuntimeSettings(deterministic=True)).seed == 0
    assert choose(RuntimeSettings(deterministic=True, seed=5)).seed == 5
    assert choose(RuntimeSettings()).seed is None


def test_settings_that_cannot_be_are_refused() -> None:
    """Steps below one, unknown strategies, handlers of no known class or given twice."""
    with pytest.raises(SettingError, match="at least 1"):
        choose(RuntimeSettings(grad_accum_steps=0))
    with pytest.raises(SettingError, match="known are auto, single, ddp"):
        strategies.resolve("dp", 1)
    with pytest.raises(SettingError, match="'ddp' does not train on this process's device, 'xla' does"):
        strategies.resolve("ddp", 2, only="xla")
    assert strategies.resolve("auto", 2, "fsdp", only="xla") == "xla"
    with pytest.raises(SettingError, match="given twice"):
        settings.Handlers([settings.AutocastKwargs(), settings.AutocastKwargs()])
    with pytest.raises(SettingError, match="not one"):
        settings.Handlers([settings.KwargsHandler()])


@pytest.mark.parametrize("steps", ["auto", 0, 2.5])
def test_steps_are_a_whole_number(steps: Any) -> None:
    """What else is given is told, with what is allowed."""
    with pytest.raises(SettingError, match="whole number, at least 1"):
        settings.GradientAccumulationPlugin(num_steps=steps)


def test_handlers_give_what_differs_from_their_defaults() -> None:
    """Only what a script chose is handed on to torch."""
    assert settings.DistributedDataParallelKwargs(bucket_cap_mb=1).to_kwargs() == {"bucket_cap_mb": 1}
    assert settings.Handlers().get(settings.GradScalerKwargs) == settings.GradScalerKwargs()


@pytest.mark.slow
@pytest.mark.parametrize("package", ["accelkit.runtime", "accelkit.utils", "accelkit"])
def test_public_names_are_there_and_cost_nothing(package: str) -> None:
    """Every name of __all__ can be had, with a star too, no other can, and importing the package does not import torch."""
    code = (
        f"import sys, {package} as p; assert 'torch' not in sys.modules; "
        f"from {package} import *; missing = [n for n in p.__all__ if n not in globals()]; assert not missing, missing; "
        "names = [*p.__all__, *dir(p)]; "
        "missing = [n for n in names if not hasattr(p, n)]; assert not missing, missing; "
        "assert not hasattr(p, 'no_such_name')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.slow
def test_the_module_says_what_it_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m accelkit` prints ranks, device, backend and strategy of another rank's place without joining anybody."""
    for name, value in (RANK | {"KIT_SEED": "4"}).items():
        monkeypatch.setenv(name, value)
    done = subprocess.run([sys.executable, "-m", "accelkit"], check=True, capture_output=True, text=True, timeout=60)

    lines = dict(line.split(":", 1) for line in done.stdout.splitlines())
    assert lines["rank"].split("(")[0].strip() == "1 of 2"
    assert lines["strategy"].split() == ["ddp", "(default)"]
    assert lines["seed"].split() == ["4", "(the", "environment", "(KIT_*))"]
    assert lines["backend"].strip() in {"gloo", "nccl"}
    monkeypatch.setenv("KIT_PRECISION", "fp64")
    failed = subprocess.run([sys.executable, "-m", "accelkit"], capture_output=True, text=True, timeout=60, check=False)
    assert failed.returncode == 1
    assert "Choose one of no, bf16, fp16, fp8" in failed.stderr


def test_the_module_says_what_it_knows_without_torch(tmp_path: Path) -> None:
    """Where torch is missing, ranks and settings are shown all the same, and how to install it; the exit code is 0."""
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    done = subprocess.run(
        [sys.executable, "-m", "accelkit"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert "rank:          0 of 1" in done.stdout
    assert "pip install 'accelkit[runtime]'" in done.stdout
