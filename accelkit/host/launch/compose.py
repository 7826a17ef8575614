"""The Compose file of a run: the shipped parts of compose/, merged with what the plan decides. Pure, but for reading those parts."""

from collections.abc import Mapping
from typing import Any, Final

import yaml

from accelkit.contract import names
from accelkit.host import paths
from accelkit.host.launch.plan import ContainerPlan, DevicePlan, LaunchPlan, NodePlan
from accelkit.host.launch.stage import BOOT

FILE: Final = "compose.yaml"


def render(plan: LaunchPlan) -> str:
    """The file's text: a service a node, and the run's network when it has one. Secrets appear as file names only."""
    if plan.container is None:
        raise ValueError("a plan without containers has no Compose file")
    document: dict[str, Any] = {
        "name": project(plan.run_id),
        "services": {node.name: _service(plan, plan.container, node) for node in plan.nodes},
    }
    if plan.network:
        document["networks"] = {
            "run": {
                "name": plan.network.name,
                "driver": "bridge",
                "labels": dict(plan.labels),
                "ipam": {"config": [{"subnet": plan.network.subnet}]},
            }
        }
    if plan.container.secrets:
        document["secrets"] = {name: {"file": file} for name, file in sorted(plan.container.secrets.items())}
    head = f"# Run {plan.run_id}, written by kit. Start it again by hand: docker compose -f {FILE} up\n"
    return head + yaml.safe_dump(_escaped(document), sort_keys=False, width=120)


def project(run_id: str) -> str:
    """Name of the Compose project of a run."""
    return f"accelkit-{run_id}"


def boot_command(node: int) -> list[str]:
    """What a container runs."""
    return [
        "python3",
        f"{names.CONTAINER_RUNTIME}/{BOOT}",
        f"{names.CONTAINER_EXCHANGE}/{names.SPEC_FILE}",
        "--node",
        str(node),
    ]


def _service(plan: LaunchPlan, container: ContainerPlan, node: NodePlan) -> dict[str, Any]:
    parts = [_part("node"), hardware_part(container.devices, container.gpus)]
    own: dict[str, Any] = {
        "image": container.image.id,
        "container_name": node.container_name,
        "hostname": node.name,
        "entrypoint": boot_command(node.index),
        "command": [],
        "working_dir": container.workdir,
        "user": container.user,
        "environment": {**container.env, names.ENV_NODE_NAME: node.name},
        "labels": {**plan.labels, names.LABEL_NODE: node.name},
        "volumes": [_volume(mount.source, mount.target, read_only=mount.read_only) for mount in container.mounts],
        "shm_size": container.shm_size,
        "ulimits": {u.name: {"soft": u.soft, "hard": u.hard} for u in container.ulimits},
        "stop_grace_period": f"{container.stop_grace}s",
        **_limits(container),
        **_network(plan, node),
    }
    if container.secrets:
        own["secrets"] = sorted(container.secrets)
    merged: dict[str, Any] = {}
    for part in (*parts, own):
        merged = merge(merged, part)
    return merged


def hardware_part(given: DevicePlan, gpus: tuple[str, ...]) -> dict[str, Any]:
    """The part of a service that gives it its hardware."""
    part: dict[str, Any] = {"environment": dict(given.environment)} if given.environment else {}
    reserved: dict[str, Any] | None = None
    if given.cdi:
        reserved = {"driver": "cdi", "device_ids": list(given.cdi)}
    elif given.driver:
        reserved = {"driver": given.driver, "capabilities": list(given.capabilities), "device_ids": list(gpus)}
    if reserved:
        part["deploy"] = {"resources": {"reservations": {"devices": [reserved]}}}
    if given.paths:
        part["devices"] = [f"{path}:{path}" for path in given.paths]
    if given.groups:
        part["group_add"] = list(given.groups)
    if given.privileged:
        part |= {"privileged": True, "cap_drop": [], "security_opt": []}
    return part


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid over `base`: mappings are merged key by key, everything else is replaced."""
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        result[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def _part(name: str) -> dict[str, Any]:
    text = (paths.data_folder("compose") / f"{name}.yaml").read_text(encoding="utf-8")
    service: dict[str, Any] = yaml.safe_load(text)["services"]["node"]
    return service


def _volume(source: str, target: str, *, read_only: bool) -> dict[str, Any]:
    """The long form, without create_host_path: a source that is not there is an error, never a folder of root's."""
    return {"type": "bind", "source": source, "target": target, "read_only": read_only,
            "bind": {"create_host_path": False}}  # fmt: skip


def _escaped(part: Any) -> Any:
    """The document with every text meaning itself: Compose replaces $NAME in its files."""
    if isinstance(part, dict):
        return {name: _escaped(value) for name, value in part.items()}
    if isinstance(part, list):
        return [_escaped(value) for value in part]
    return part.replace("$", "$$") if isinstance(part, str) else part


def _limits(container: ContainerPlan) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    if container.cpus is not None:
        limits["cpus"] = container.cpus
    if container.memory is not None:
        limits |= {"mem_limit": container.memory, "memswap_limit": container.memory}
    return limits


def _network(plan: LaunchPlan, node: NodePlan) -> dict[str, Any]:
    """One node: the engine's default bridge, or the machine's own network where its hardware needs that.

    Several: the run's network, every name known by address without asking a DNS server.
    """
    if plan.network is None:
        return {"network_mode": "host" if plan.container and plan.container.devices.host_network else "bridge"}
    return {
        "networks": {"run": {"ipv4_address": node.address, "aliases": [node.name]}},
        "extra_hosts": {peer.name: peer.address for peer in plan.nodes if peer.index != node.index},
    }
