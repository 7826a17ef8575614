"""What `kit doctor` says of a machine: every state of each check, from facts alone; and the command on this machine."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from accelkit.host import paths
from accelkit.host.cli import images
from accelkit.host.config.model import BuildConfig, Config, RunConfig
from accelkit.host.doctor import checks, facts
from accelkit.host.doctor.checks import GIB, Finding
from accelkit.host.doctor.facts import EngineFacts, Facts, ImageFacts
from accelkit.host.errors import EngineUnavailable
from accelkit.host.hardware import GpuInfo, Hardware
from accelkit.host.launch.plan import EngineDevices
from tests.support.kit import kit

INFO: dict[str, Any] = {
    "ServerVersion": "28.0.1",
    "OperatingSystem": "Debian",
    "CgroupVersion": "2",
    "DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]],
    "HttpsProxy": "",
    "SecurityOptions": ["name=seccomp,profile=builtin"],
    **dict.fromkeys(("MemoryLimit", "SwapLimit", "CpuCfsQuota", "PidsLimit"), True),
}
ENGINE = EngineFacts(
    place="/var/run/docker.sock", info=INFO, is_here=True, clock=0.0, devices=EngineDevices(runtimes=("runc",)), cdi=()
)
GPU = GpuInfo(index=0, uuid="GPU-1", name="H200", memory=140 << 30, driver="580.65.06", capability="9.0")
MACHINE = Hardware(
    hostname="a", system="Linux", kernel="6", machine="x86_64", cpu="c", cores=8, memory=64 * GIB, gpus=(), tpu=False
)
GOOD = Facts(
    machine=MACHINE,
    config=Config(),
    config_files=("kit.yaml",),
    config_problem="",
    engine=ENGINE,
    engine_problem=None,
    commands={"docker": "28", "buildx": "0.20", "compose": "2.33"},
    free={"/": 100 * GIB},
    shm=8 * GIB,
    memory_limit=None,
    images=(ImageFacts(name="cpu", here="yes", built=True),),
    drift="",
    drift_remedy="",
    has_lock=True,
    torch="2.13.0",
    newest_file=1.0,
    now=2.0,
    environ={},
    missing_trust=(),
)
LOCAL = Config(run=RunConfig(on="local"))
NO_ENGINE = {"engine": None, "engine_problem": EngineUnavailable("no Docker engine", hint="start Docker")}
WITH_GPU = replace(MACHINE, gpus=(GPU,))


def told(**changes: Any) -> dict[str, Finding]:
    """Findings by name, of the good machine with these facts changed; of several of one name the last that is not in order."""
    found: dict[str, Finding] = {}
    for one in checks.examine(replace(GOOD, **changes)):
        if one.name not in found or one.state != "ok":
            found[one.name] = one
    return found


def engine(**info: Any) -> dict[str, Any]:
    """The engine with something else in what it tells of itself."""
    return {"engine": replace(ENGINE, info={**INFO, **info})}


def test_a_good_machine_has_nothing_to_mend() -> None:
    """No warning, no failure, and a finding of every check."""
    found = checks.examine(GOOD)
    assert {one.state for one in found} <= {"ok", "none"}
    assert len(found) >= len(checks.CHECKS)


@pytest.mark.parametrize(
    ("changes", "name", "state", "words"),
    [
        ({"config": None, "config_problem": "kit.yaml:3: bad"}, "config", "failed", "kit.yaml:3"),
        ({"config_files": ()}, "config", "none", "defaults"),
        (NO_ENGINE, "engine", "failed", "no Docker engine"),
        ({**NO_ENGINE, "config": LOCAL}, "engine", "warning", "no Docker engine"),
        (engine(Warnings=["WARNING: bridge-nf"]), "engine", "warning", "bridge-nf"),
        (engine(SecurityOptions=["name=rootless"]), "users", "ok", "root inside is you"),
        ({"commands": {"docker": None}}, "docker", "failed", "PATH"),
        ({"commands": {"docker": "28", "buildx": "1", "compose": None}}, "compose", "failed", "runs need it"),
        ({"commands": {"docker": "28", "buildx": None, "compose": "2"}}, "buildx", "failed", "builds need it"),
        (engine(DriverStatus=[["Backing Filesystem", "extfs"]]), "image store", "warning", "--reproducible"),
        ({"free": {"/data": 5 * GIB}}, "disk", "warning", "/data"),
        ({"free": {"/data": GIB // 2}}, "disk", "failed", "512 MiB free"),
        (engine(MemoryLimit=False), "cgroups", "warning", "--memory"),
        ({"memory_limit": 4 * GIB}, "memory", "ok", "4.0 GiB of the machine's 64.0 GiB"),
        ({"shm": 64 << 20}, "shm", "warning", "64 MiB"),
        ({"shm": None}, "shm", "warning", "no /dev/shm"),
        ({"machine": WITH_GPU}, "nvidia runtime", "warning", "CDI"),
        ({"machine": WITH_GPU, "config": Config(run=RunConfig(image="cuda"))}, "nvidia runtime", "failed", "CDI"),
        ({"images": (ImageFacts(name="cpu", here="yes", built=False),)}, "image cpu", "failed", "not built"),
        ({"images": (ImageFacts(name="tpu", here="yes", built=False),)}, "image tpu", "none", "not built"),
        ({"images": (ImageFacts(name="cuda", here="no: driver 470", built=True),)}, "image cuda", "warning", "470"),
        ({"images": (ImageFacts(name="cuda", here="not found: x", built=False),)}, "image cuda", "none", "not found"),
        ({"images": (ImageFacts(name="npu", here="", built=False, problem="bad"),)}, "image npu", "warning", "bad"),
        ({"images": (ImageFacts(name="cpu", here="", built=False, problem="bad"),)}, "image cpu", "failed", "bad"),
        ({"config": Config(build=BuildConfig(ca="/no")), "missing_ca": True}, "certificates", "failed", "/no, which"),
        ({"torch": None}, "local", "none", "no torch"),
        ({"torch": None, "config": LOCAL}, "local", "failed", "no torch"),
        ({"has_lock": False}, "kit.lock", "none", "none here"),
        (
            {"drift": "kit.lock: base: changed", "drift_remedy": "kit lock renews it"},
            "kit.lock",
            "warning",
            "base: changed",
        ),
        ({"environ": {"https_proxy": "http://p"}}, "proxy", "warning", "the engine"),
        ({"environ": {"https_proxy": "http://p"}, **engine(HttpsProxy="http://p")}, "proxy", "ok", "builds"),
        ({"environ": {"PIP_CERT": "/no"}, "missing_trust": ("PIP_CERT",)}, "certificates", "warning", "not there"),
        ({"environ": {"PIP_CERT": "/ca"}}, "certificates", "warning", "PIP_CERT"),
        (
            {"environ": {"PIP_CERT": "/ca"}, "config": Config(build=BuildConfig(ca="/ca"))},
            "certificates",
            "ok",
            "builds get /ca",
        ),
        ({"engine": replace(ENGINE, clock=-60.0)}, "clock", "warning", "60 s behind"),
        ({"now": 0.5}, "clock", "warning", "before this kit"),
    ],
)
def test_what_is_wrong_is_told_with_its_remedy(changes: dict[str, Any], name: str, state: str, words: str) -> None:
    """The finding of that name has that state and says it; what is a warning or failed has a remedy."""
    finding = told(**changes)[name]
    assert finding.state == state
    assert words in finding.text
    assert finding.remedy or state in ("ok", "none")


def test_gpus_are_passed_on_by_uuid_or_by_the_runtime() -> None:
    """CDI specifications that know every GPU do, and so does the runtime; a specification of other GPUs is told as stale."""
    by_cdi = told(machine=WITH_GPU, engine=replace(ENGINE, cdi=("0", "GPU-1", "all")))
    assert by_cdi["cdi"].state == "ok"
    by_runtime = told(machine=WITH_GPU, engine=replace(ENGINE, devices=EngineDevices(runtimes=("nvidia", "runc"))))
    assert by_runtime["nvidia runtime"].state == "ok"
    stale = told(machine=WITH_GPU, engine=replace(ENGINE, cdi=("GPU-0",)))
    assert stale["cdi"].state == "warning"
    assert "GPU-0" in stale["cdi"].text
    assert stale["nvidia runtime"].state == "warning"


@pytest.mark.slow
def test_the_command_fails_where_runs_as_configured_would(tmp_path: Path) -> None:
    """Without an engine: exit code 1 for containers, 0 for local ranks; JSON has every finding."""
    no_engine = {"DOCKER_HOST": "unix:///nowhere.sock", "XDG_CONFIG_HOME": str(tmp_path)}
    failed = kit("doctor", "--json", cwd=tmp_path, env=no_engine)
    assert failed.code == 1, failed.err
    by_name = {one["name"]: one for one in json.loads(failed.out)}
    assert by_name["engine"]["state"] == "failed"
    assert "--on local" in by_name["engine"]["remedy"]

    shown = kit("doctor", cwd=tmp_path, env={**no_engine, "KIT_ON": "local"})
    assert shown.code == 0, shown.out
    assert "warning  engine" in shown.out

    (tmp_path / "kit.yaml").write_text("version: 1\nrun:\n  nodez: 2\n")
    damaged = kit("doctor", cwd=tmp_path, env=no_engine)
    assert damaged.code == 1
    assert "nodes" in damaged.out


def test_what_is_damaged_is_a_finding_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of images whose file is not UTF-8, certificates that are not there, a lock that cannot be read: each with its remedy."""
    shutil.copytree(paths.data_folder("images"), tmp_path / "images")
    (tmp_path / "images" / "tpu" / "image.yaml").write_bytes(b"\xff")
    (tmp_path / "kit.yaml").write_text("version: 1\nbuild:\n  ca: no/ca.pem\n")
    (tmp_path / "kit.lock").write_bytes(b"\xff")
    monkeypatch.setattr(paths, "data_folder", lambda name: tmp_path / name)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    found = facts.read(dict(os.environ), tmp_path)

    assert found.missing_ca
    assert {one.name: bool(one.problem) for one in found.images}["tpu"]
    assert sum(bool(one.problem) for one in found.images) == 1
    text, remedy = facts._drift(found.config, tmp_path)
    assert "utf-8" in text
    assert "delete it" in remedy
    rows = {name: images._row(name, found.machine) for name in ("cpu", "tpu")}
    assert "image.yaml" in rows["tpu"]["here"]
    assert rows["cpu"]["torch"]
