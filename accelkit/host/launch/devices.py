"""How the containers of a run get their hardware: by the image's rules, this machine and the engine; checked before anything starts."""

import glob
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from accelkit.host.errors import UsageError
from accelkit.host.hardware import GpuInfo, Hardware
from accelkit.host.image import catalogue
from accelkit.host.image.catalogue import Build, DeviceRules
from accelkit.host.image.variants import runs_on
from accelkit.host.launch import tpu
from accelkit.host.launch.plan import DevicePlan, EngineDevices, ImagePlan

GPU_IMAGE: Final = "cuda"
"""The image whose rules hold for others that are given GPUs."""


def asks_for_gpus(image: ImagePlan) -> bool:
    """Whether an image gets all GPUs where the user names none."""
    return catalogue.devices(image.hardware).request is not None


def share_ports(image: ImagePlan) -> bool:
    """Whether containers of an image use this machine's own ports."""
    return catalogue.devices(image.hardware).network == "host"


def check_strategy(image: ImagePlan, strategy: str) -> None:
    """Raise UsageError for a strategy that the image's hardware has not, naming the images that do."""
    if strategy == "auto" or image.hardware not in catalogue.names():
        return
    known = catalogue.load(image.hardware).strategies
    if strategy in known:
        return
    others = [name for name in catalogue.names() if strategy in catalogue.load(name).strategies]
    raise UsageError(
        f"--strategy {strategy}: image {image.hardware} supports {', '.join(known)}",
        hint=f"leave it out, or use --image {' or '.join(others)}" if others else "leave it out",
    )


def decide(
    image: ImagePlan, nodes: int, gpus: tuple[str, ...], machine: Hardware, engine: EngineDevices, environ: Mapping[str, str],
    *, wanted: bool = True,
) -> DevicePlan:  # fmt: skip
    """What every container of `image` is given. `gpus`: UUIDs chosen for a node; `environ`: what the user passes to the ranks.

    With `wanted` False (--gpus none) no device is. Raises UsageError for hardware that is not here or does not fit.
    """
    rules = catalogue.devices(image.hardware)
    if gpus and rules.request is None:  # an image of the user's own
        rules = catalogue.devices(GPU_IMAGE)
    if not wanted:
        return DevicePlan(environment={**rules.environment, **_hidden(rules)})
    _check_present(image, rules)
    if rules.request:
        _check_gpus(image, rules, gpus, machine, engine)
    _check_nodes(image, rules, nodes, environ)
    names = cdi_names(rules, gpus, engine)
    by_request = rules.request if gpus and not names else None
    request: dict[str, Any] = (
        {"driver": by_request.driver, "capabilities": by_request.capabilities} if by_request else {}
    )
    return DevicePlan(
        environment=dict(rules.environment),
        cdi=names,
        paths=tuple(path for path in rules.paths if Path(path).exists()),
        groups=group_ids(rules.groups, Path("/etc/group")),
        privileged=rules.privileged,
        host_network=rules.network == "host",
        memlock=rules.memlock,
        **request,
    )


def cdi_names(rules: DeviceRules, gpus: tuple[str, ...], engine: EngineDevices) -> tuple[str, ...]:
    """Names of the chosen devices where the engine has CDI and a specification knows all of them by UUID; none otherwise."""
    if rules.cdi is None or not gpus:
        return ()
    known = {name for folder in engine.cdi_folders for name in specified(Path(folder), rules.cdi)}
    return tuple(f"{rules.cdi}={gpu}" for gpu in gpus) if known.issuperset(gpus) else ()


def group_ids(names: tuple[str, ...], file: Path) -> tuple[str, ...]:
    """IDs of this machine's groups of these names: inside the container they have no name."""
    lines = file.read_text().splitlines() if names and file.is_file() else []
    by_name = {fields[0]: fields[2] for line in lines if len(fields := line.split(":")) > 2}
    return tuple(by_name[name] for name in names if name in by_name)


def _check_nodes(image: ImagePlan, rules: DeviceRules, nodes: int, environ: Mapping[str, str]) -> None:
    if rules.network == "host" and nodes > 1:
        raise UsageError(
            f"--nodes {nodes} with image {image.hardware}: its containers use this machine's own network and devices: it is one node",
            hint="use --nodes 1; the other machines of a slice run their own",
        )
    if tpu.is_about(rules):
        tpu.check(environ, nodes)


def _hidden(rules: DeviceRules) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": ""} if rules.request else {}


def _check_present(image: ImagePlan, rules: DeviceRules) -> None:
    if rules.present and not any(glob.glob(pattern) for pattern in rules.present):
        raise UsageError(
            f"image {image.hardware}: this machine has no such hardware (looked for {', '.join(rules.present)})",
            hint=f"{rules.missing}; or run on its CPU: --gpus none",
        )


def _check_gpus(
    image: ImagePlan, rules: DeviceRules, gpus: tuple[str, ...], machine: Hardware, engine: EngineDevices
) -> None:
    if not machine.gpus:
        raise UsageError(
            f"image {image.hardware}: the driver lists no GPU (nvidia-smi)",
            hint="mend the driver; or run on the CPU: --gpus none",
        )
    chosen = tuple(g for g in machine.gpus if g.uuid in gpus)
    _check_fit(image, chosen)
    driver = rules.request.driver if rules.request else ""
    if driver not in engine.runtimes and not cdi_names(rules, gpus, engine):
        raise UsageError(
            f"image {image.hardware}: the engine has neither the runtime {driver} nor a CDI specification of these GPUs",
            hint="install the NVIDIA Container Toolkit, type: nvidia-ctk runtime configure --runtime=docker, and restart Docker",
        )


def _check_fit(image: ImagePlan, gpus: tuple[GpuInfo, ...]) -> None:
    """Driver and kernels of the image against the GPUs, from its labels."""
    compiled = tuple(c for c in image.capabilities.rstrip("+").split(",") if c)
    build = Build(
        driver=image.driver or None, capabilities=compiled, forward=image.capabilities.endswith("+"), cuda=None
    )
    driver = min((g.driver for g in gpus), default=None)
    why = runs_on(build, driver, tuple(g.capability for g in gpus if g.capability))
    if why:
        raise UsageError(
            f"image {image.tag}: {why.strip()}",
            hint=f"kit build {image.hardware} --variant NAME builds one that fits; kit images {image.hardware} lists them",
        )


def specified(folder: Path, kind: str) -> set[str]:
    """Names of the devices of a kind in a folder of CDI specifications, which are JSON or YAML."""
    import yaml

    found: set[str] = set()
    for path in sorted([*folder.glob("*.json"), *folder.glob("*.yaml")]):
        try:
            text = path.read_text(encoding="utf-8")
            spec = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
        except (OSError, ValueError, yaml.YAMLError):
            continue
        if isinstance(spec, dict) and spec.get("kind") == kind:
            found |= {str(device.get("name")) for device in spec.get("devices") or ()}
    return found
