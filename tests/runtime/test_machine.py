"""What scripts ask about the machine, and the small functions of this API family that touch files and the environment."""

import os
import platform
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from accelkit import Accelerator, AcceleratorState, SettingError, cpu_offload, dispatch_model
from accelkit.host.config import loading
from accelkit.runtime.machine import parse_cpus
from accelkit.utils import (
    RNG_STATE_NAME,
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    are_libraries_initialized,
    check_cuda_p2p_ib_support,
    check_os_kernel,
    clean_state_dict_for_safetensors,
    convert_dict_to_env_variables,
    get_cpu_distributed_information,
    get_current_device_type,
    get_driver_version,
    get_gpu_info,
    save,
    set_numa_affinity,
    write_basic_config,
)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No state of another test."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def test_a_basic_config_is_one_that_kit_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the precision and one rank where there is no GPU, lies where `kit` looks, and replaces no file."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = write_basic_config(mixed_precision="bf16")

    assert path == tmp_path / "accelkit" / "default_config.yaml"
    found = loading.load(given={}, config_file=None, cwd=tmp_path, environ={}).config
    assert (found.run.precision, found.run.procs_per_node) == ("bf16", max(1, torch.cuda.device_count()))
    assert write_basic_config() is False
    assert "bf16" in path.read_text()
    other = tmp_path / "deep" / "kit.yaml"
    assert write_basic_config(save_location=other) == other
    with pytest.raises(ValueError, match="mixed_precision='int3'"):
        write_basic_config("int3", tmp_path / "never.yaml")
    assert not (tmp_path / "never.yaml").exists()


@pytest.mark.parametrize(
    ("release", "warns"),
    [("5.4.0-1", True), ("4.19", True), ("5.5.0", False), ("5.10.1", False), ("6.1", False), ("odd", False)],
)
@pytest.mark.skipif(sys.platform != "linux", reason="about Linux")
def test_old_kernels_are_warned_of(release: str, warns: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions are compared as numbers; the first Accelerator asks, too."""
    monkeypatch.setattr(platform, "release", lambda: release)
    for call in (check_os_kernel, Accelerator):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            call()
        assert [f"Linux {release} is older than 5.5" in str(warning.message) for warning in seen] == [True] * warns


def test_ranks_as_launchers_tell_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone: one of one. Else the numbers of the environment."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    found = get_cpu_distributed_information()
    assert (found.rank, found.world_size, found.local_rank, found.local_world_size) == (0, 1, 0, 1)
    told = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    for name, value in {**told, "MASTER_ADDR": "a", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    found = get_cpu_distributed_information()
    assert (found.rank, found.world_size, found.local_rank, found.local_world_size) == (5, 8, 1, 4)


def test_devices_of_this_machine() -> None:
    """Each answer agrees with torch's; without a GPU nothing is pinned, and nothing is forbidden."""
    names, count = get_gpu_info()
    assert len(names) == count == torch.cuda.device_count()
    assert get_current_device_type() == (("MULTI_GPU", "cuda") if count else ("MULTI_CPU", "cpu"))
    assert (get_driver_version() is None) == (not Path("/proc/driver/nvidia/version").exists())
    if not count:
        assert check_cuda_p2p_ib_support()
        before = os.sched_getaffinity(0)
        set_numa_affinity(0, verbose=True)
        assert os.sched_getaffinity(0) == before


def test_lists_of_cpus() -> None:
    """As the kernel writes them."""
    assert parse_cpus("0-3,8,10-11\n") == {0, 1, 2, 3, 8, 10, 11}
    assert parse_cpus("7\n") == {7}
    assert parse_cpus("\n") == set()


def test_libraries_that_are_loaded() -> None:
    """Those of the names that this process has imported."""
    assert are_libraries_initialized("torch", "no_such_library", "accelkit") == ["torch", "accelkit"]


def test_variables_for_a_command_line() -> None:
    """What a shell would take apart is left out by name."""
    with pytest.warns(UserWarning, match="left out") as warned:
        made = convert_dict_to_env_variables({"A": 1, "B": "x;y", "C": "", "D": "a b", "E": "<", "F": "fine"})
    assert made == ["A=1", "F=fine"]
    assert [str(warning.message).split()[2] for warning in warned] == ["B", "C", "D", "E"]


def test_a_state_made_ready_for_safetensors(tmp_path: Path) -> None:
    """Tied names go with a warning that names them, values are contiguous and equal, and the format takes the result."""
    shared = torch.arange(6.0).reshape(2, 3)
    state = {"a": shared, "b": shared, "c": shared.t(), "d": torch.ones(2)}
    with pytest.warns(UserWarning, match=r"b \(the same as a\)"):
        clean = clean_state_dict_for_safetensors(state)
    assert list(clean) == ["a", "c", "d"]
    assert all(torch.equal(clean[name], state[name]) and clean[name].is_contiguous() for name in clean)
    Accelerator(cpu=True)
    save(clean, tmp_path / SAFE_WEIGHTS_NAME, safe_serialization=True)
    assert (tmp_path / "model.safetensors").stat().st_size


def test_names_of_files_are_those_that_are_written(tmp_path: Path) -> None:
    """The constants name what saving writes."""
    acc = Accelerator(cpu=True)
    acc.prepare(model := nn.Linear(4, 4))
    acc.save_state(tmp_path / "state")
    assert {f"{RNG_STATE_NAME}_0.pkl", SAFE_WEIGHTS_NAME} <= {path.name for path in (tmp_path / "state").iterdir()}
    acc.save_model(model, tmp_path / "model", max_shard_size=20)
    assert (tmp_path / "model" / SAFE_WEIGHTS_INDEX_NAME).exists()


def test_the_third_argument_of_save(tmp_path: Path) -> None:
    """It asks for the safetensors format, as scripts of this API family mean it."""
    Accelerator(cpu=True).save({"a": torch.ones(1)}, tmp_path / "a", True)
    assert b'"format"' in (tmp_path / "a").read_bytes()[:100]


def test_dispatched_models_are_recognised(tmp_path: Path) -> None:
    """Parts on the disk or the CPU beside others count as places; one place does not; one rank may run such a model."""
    acc = Accelerator(cpu=True)

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))

    divided = dispatch_model(make(), {"0": "cpu", "1": "disk"}, offload_dir=tmp_path)
    for model, found in (
        (make(), False),
        (dispatch_model(make(), {"": "cpu"}), False),
        (cpu_offload(make()), False),
        (divided, True),
        (nn.Sequential(divided), True),
    ):
        assert acc.verify_device_map(model) is found
    x = torch.ones(1, 2)
    assert torch.equal(acc.prepare_model(divided)(x), divided(x))


def test_unknown_generators_are_refused() -> None:
    """By name, with those that there are."""
    with pytest.raises(SettingError, match=r"'dice' is not known(?s:.*)torch, cuda"):
        Accelerator(rng_types=["torch", "dice"])
    assert Accelerator().rng_types == ["generator"]
