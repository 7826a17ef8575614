"""How containers get their hardware: the plan and the Compose file of each image, and what is refused before anything starts."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from accelkit.contract.spec import Program
from accelkit.contract.strategies import STRATEGIES
from accelkit.host import hardware
from accelkit.host.config.model import RunConfig
from accelkit.host.errors import UsageError
from accelkit.host.hardware import GpuInfo, Hardware
from accelkit.host.image import catalogue
from accelkit.host.image.catalogue import DeviceRules
from accelkit.host.launch import compose, devices, planning, tpu
from accelkit.host.launch.plan import DevicePlan, EngineDevices, ImagePlan
from accelkit.host.launch.planning import EngineFacts, Place
from accelkit.host.launch.stage import Staged
from accelkit.host.launch.topology import Topology

UUIDS = ("GPU-aaaa", "GPU-bbbb")
WITH_RUNTIME = EngineDevices(runtimes=("nvidia", "runc"))


def gpu(index: int, driver: str = "580.95", capability: str = "9.0") -> GpuInfo:
    """A GPU."""
    return GpuInfo(index=index, uuid=UUIDS[index], name="H200", memory=1 << 37, driver=driver, capability=capability)


def machine(*gpus: GpuInfo) -> Hardware:
    """A machine with these GPUs."""
    return Hardware(
        hostname="m", system="Linux", kernel="6", machine="x86_64", cpu="c", cores=8, memory=1 << 37, gpus=gpus
    )


def image(name: str, **labels: str) -> ImagePlan:
    """An image that `kit build` made."""
    return ImagePlan(reference=name, tag=f"accelkit-{name}:latest", id="sha256:1", hardware=name, **labels)


CUDA = image("cuda", driver="580", capabilities="7.5,8.0,8.6,9.0,10.0,12.0+")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every hardware is there, as far as files tell."""
    monkeypatch.setattr(devices.glob, "glob", lambda pattern: [pattern])


@pytest.fixture(autouse=True)
def no_caller_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the caller's shell holds must never matter."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")


def service(of: ImagePlan, found: Hardware, engine: EngineDevices, tmp_path: Path, **config: Any) -> dict[str, Any]:
    """The service of node 0 in the Compose file of a run."""
    (tmp_path / "s.py").write_text("")
    run = RunConfig(image=of.tag, **config)
    topo = Topology.resolve(run, found.gpus, gpu_image=devices.asks_for_gpus(of))
    place = Place(
        run_id="r1", run_dir=tmp_path / "run", workdir=tmp_path, staged=Staged(folder=tmp_path, digest="sha256:s"), environ={},
        python="python3",
    )  # fmt: skip
    program = Program(kind="script", target="s.py", args=())
    plan = planning.plan_docker(run, program, place, topo, EngineFacts(image=of, devices=engine), found)
    services: dict[str, dict[str, Any]] = yaml.safe_load(compose.render(plan))["services"]
    assert len(services) == topo.nodes
    return services["node0"]


def reserved(rendered: dict[str, Any]) -> dict[str, Any]:
    """The one device reservation of a service."""
    (found,) = rendered["deploy"]["resources"]["reservations"]["devices"]
    return dict(found)


@pytest.mark.usefixtures("here")
def test_gpus_are_asked_for_by_uuid_in_one_container(tmp_path: Path) -> None:
    """One container a host with all ranks, UUIDs as a list, the capabilities that tools need too, PCI order, nothing of the caller's."""
    rendered = service(CUDA, machine(gpu(0), gpu(1)), WITH_RUNTIME, tmp_path)

    assert reserved(rendered) == {
        "driver": "nvidia",
        "capabilities": ["gpu", "compute", "utility"],
        "device_ids": list(UUIDS),
    }
    assert rendered["environment"]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "CUDA_VISIBLE_DEVICES" not in rendered["environment"]
    assert rendered["shm_size"] == 8 << 30
    assert rendered["cap_drop"] == ["ALL"]
    assert reserved(service(CUDA, machine(gpu(0), gpu(1)), WITH_RUNTIME, tmp_path, gpus="1,"))["device_ids"] == [
        UUIDS[1]
    ]


@pytest.mark.usefixtures("here")
def test_cdi_is_preferred_where_a_specification_knows_the_gpus(tmp_path: Path) -> None:
    """By UUID, in JSON or YAML; one that knows only some of them is not used."""
    spec = {
        "cdiVersion": "0.6.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": name} for name in ("0", *UUIDS, "all")],
    }
    folder = tmp_path / "cdi"
    folder.mkdir()
    engine = EngineDevices(runtimes=("runc",), cdi_folders=(str(folder), "/nowhere"))
    for name, text in (("nvidia.json", json.dumps(spec)), ("nvidia.yaml", yaml.safe_dump(spec))):
        (folder / name).write_text(text)
        rendered = service(CUDA, machine(gpu(0), gpu(1)), engine, tmp_path)
        assert reserved(rendered) == {"driver": "cdi", "device_ids": [f"nvidia.com/gpu={uuid}" for uuid in UUIDS]}
        (folder / name).unlink()
    (folder / "broken.json").write_text("{")
    (folder / "nvidia.json").write_text(json.dumps({**spec, "devices": [{"name": UUIDS[0]}]}))
    with pytest.raises(UsageError, match="neither the runtime nvidia nor a CDI specification"):
        service(CUDA, machine(gpu(0), gpu(1)), engine, tmp_path)


@pytest.mark.usefixtures("here")
def test_driver_and_kernels_are_compared_before_anything_starts(tmp_path: Path) -> None:
    """An older driver, a GPU that the kernels are not for; the way out is named; GPUs that are not chosen do not matter."""
    for found, what in (
        (machine(gpu(0, driver="535.104")), "needs driver 580 or newer; here is 535.104"),
        (machine(gpu(0, capability="7.0")), "here is 7.0"),
    ):
        with pytest.raises(UsageError, match=what) as told:
            service(CUDA, found, WITH_RUNTIME, tmp_path)
        assert "kit images cuda" in (told.value.hint or "")
    service(CUDA, machine(gpu(0), gpu(1, capability="7.0")), WITH_RUNTIME, tmp_path, gpus="0,")


@pytest.mark.usefixtures("here")
def test_an_engine_without_nvidias_runtime_says_what_to_install(tmp_path: Path) -> None:
    """Before the container fails with words of the engine's."""
    with pytest.raises(UsageError) as told:
        service(CUDA, machine(gpu(0)), EngineDevices(runtimes=("runc",)), tmp_path)
    assert "NVIDIA Container Toolkit" in (told.value.hint or "")
    with pytest.raises(UsageError, match="the driver lists no GPU"):
        service(CUDA, machine(), WITH_RUNTIME, tmp_path)


@pytest.mark.parametrize("name", ["cuda", "rocm", "xpu", "tpu"])
def test_hardware_that_is_not_here_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was looked for, what to install, and the way to run without it, which gives no device at all."""
    monkeypatch.setattr(devices.glob, "glob", lambda _pattern: [])
    with pytest.raises(UsageError, match=f"image {name}: this machine has no such hardware") as told:
        service(image(name), machine(), WITH_RUNTIME, tmp_path)
    assert catalogue.devices(name).missing in (told.value.hint or "")
    rendered = service(image(name), machine(), WITH_RUNTIME, tmp_path, gpus="none")
    assert not {"deploy", "devices", "privileged"} & rendered.keys()


def test_cpu_containers_find_no_accelerator_by_accident(tmp_path: Path) -> None:
    """Also on a machine with GPUs; several nodes of one machine are fine."""
    rendered = service(image("cpu"), machine(gpu(0)), WITH_RUNTIME, tmp_path, nodes=2)

    assert rendered["environment"]["CUDA_VISIBLE_DEVICES"] == ""
    assert "deploy" not in rendered
    assert rendered["shm_size"] == 1 << 30


@pytest.mark.usefixtures("here")
def test_an_image_of_ones_own_gets_the_gpus_that_are_asked_for(tmp_path: Path) -> None:
    """As a CUDA image does; none where none are asked for."""
    own = ImagePlan(reference="mine:1", tag="mine:1", id="sha256:2")

    assert reserved(service(own, machine(gpu(0)), WITH_RUNTIME, tmp_path, gpus="all"))["device_ids"] == [UUIDS[0]]
    assert "deploy" not in service(own, machine(gpu(0)), WITH_RUNTIME, tmp_path)


@pytest.mark.usefixtures("here")
def test_tpu_containers_have_the_hosts_network_and_devices(tmp_path: Path) -> None:
    """Privileged, host network, 16 GiB of shared memory, locked memory, PJRT on TPU, no variable of a topology."""
    rendered = service(image("tpu"), machine(), WITH_RUNTIME, tmp_path)

    assert (rendered["privileged"], rendered["network_mode"], rendered["shm_size"]) == (True, "host", 16 << 30)
    assert rendered["environment"]["PJRT_DEVICE"] == "TPU"
    assert not [name for name in rendered["environment"] if name.startswith("TPU_")]
    assert "memlock" in rendered["ulimits"]
    assert rendered["cap_drop"] == []
    with pytest.raises(UsageError, match="it is one node"):
        service(image("tpu"), machine(), WITH_RUNTIME, tmp_path, nodes=2)


def test_variables_of_a_slice_are_all_there_or_none() -> None:
    """Every part of the group alone is refused, naming what is missing; fewer hosts than the slice are; the rank is the worker's."""
    whole = {
        "TPU_SKIP_MDS_QUERY": "1", "TPU_ACCELERATOR_TYPE": "v5litepod-8", "TPU_PROCESS_BOUNDS": "1,2,1",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "2,2,1", "TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "a,b",
    }  # fmt: skip
    tpu.check({}, 1)
    tpu.check(whole, 2)
    for name in whole:
        with pytest.raises(UsageError, match=f"missing are {name}"):
            tpu.check({n: v for n, v in whole.items() if n != name}, 2)
    with pytest.raises(UsageError, match="names 2 hosts and the run has 1"):
        tpu.check(whole, 1)
    assert tpu.node_rank(whole, 2) == 1
    with pytest.raises(UsageError, match="TPU_WORKER_ID is '2'"):
        tpu.check({**whole, "TPU_WORKER_ID": "2"}, 2)
    with pytest.raises(UsageError, match="XLA_USE_BF16"):
        tpu.check({"XLA_USE_BF16": "1"}, 1)


def test_device_files_come_with_their_groups(tmp_path: Path) -> None:
    """Files that are there, and the IDs that this machine's groups have; a group that is not there is none."""
    (tmp_path / "group").write_text("root:x:0:\nvideo:x:44:me\nrender:x:105:\n")

    assert devices.group_ids(("video", "render", "none"), tmp_path / "group") == ("44", "105")
    assert compose.hardware_part(DevicePlan(paths=("/dev/kfd",), groups=("44",)), ()) == {
        "devices": ["/dev/kfd:/dev/kfd"], "group_add": ["44"],
    }  # fmt: skip
    assert compose.hardware_part(DevicePlan(), ()) == {}
    assert devices.cdi_names(DeviceRules(), UUIDS, WITH_RUNTIME) == ()


def test_gpus_are_read_from_what_nvidia_smi_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the compute capability; from a driver that does not know that question, without."""
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    line = "0, GPU-aaaa, NVIDIA H200, 143771, 580.95.05"
    tool.write_text(f"#!/bin/sh\necho '{line}, 9.0'\n")
    tool.chmod(0o755)
    (found,) = hardware.probe().gpus
    assert (found.uuid, found.driver, found.capability, found.memory) == ("GPU-aaaa", "580.95.05", "9.0", 143771 << 20)
    tool.write_text(f"#!/bin/sh\ncase $1 in *compute_cap*) exit 2 ;; esac\necho '{line}'\n")
    (found,) = hardware.probe().gpus
    assert (found.uuid, found.capability) == ("GPU-aaaa", "")


@pytest.mark.parametrize("name", catalogue.names())
def test_only_strategies_of_the_image_are_planned(name: str) -> None:
    """What its image.yaml lists is taken, and `auto`; another is refused by name, with the images that have it."""
    supported = catalogue.load(name).strategies
    for strategy in (*supported, "auto"):
        devices.check_strategy(image(name), strategy)
    for strategy in set(STRATEGIES) - {*supported, "auto"}:
        with pytest.raises(UsageError, match=f"--strategy {strategy}: image {name} supports") as told:
            devices.check_strategy(image(name), strategy)
        for other in catalogue.names():
            assert (f"{other} " in f"{told.value.hint} ") == (strategy in catalogue.load(other).strategies)
    devices.check_strategy(image("somebodys"), "fsdp")
