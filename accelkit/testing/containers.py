"""Containers of a plan through testcontainers, for test sessions: the same plan, mounts and boot as `kit run`, no Compose.

testcontainers' own reaper is off: it needs an image of its own, and what it would sweep carries the run's label and is removed by
`clean` anyway, also after Ctrl-C.
"""

from typing import Any

from docker.types import IPAMConfig, IPAMPool, LogConfig, Mount, Ulimit
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer

from accelkit.contract import names
from accelkit.host.engine import client as engine
from accelkit.host.launch import compose
from accelkit.host.launch.backends.docker import DockerBackend
from accelkit.host.launch.plan import ContainerPlan, LaunchPlan, NodePlan


class TestcontainersBackend(DockerBackend):
    """The docker backend, its containers made and started by testcontainers."""

    __test__ = False  # not a test class, whatever pytest thinks of its name

    def _place(self) -> None:
        testcontainers_config.ryuk_disabled = True
        client = engine.connect()
        plan = self._plan
        with engine.engine_errors("starting the test's containers"):
            if plan.network is not None:
                pool = IPAMPool(subnet=plan.network.subnet)
                ipam = IPAMConfig(pool_configs=[pool])
                client.networks.create(plan.network.name, ipam=ipam, labels=plan.labels)
            for node in plan.nodes:
                container = DockerContainer(self._container_plan.image.id)
                container.with_name(str(node.container_name))
                container.with_command(compose.boot_command(node.index))
                container.env = _environment(self._container_plan, node)
                container.with_kwargs(**_arguments(client, plan, self._container_plan, node))
                container.start()


def _environment(container: ContainerPlan, node: NodePlan) -> dict[str, str]:
    return {**container.env, names.ENV_NODE_NAME: node.name, "CUDA_VISIBLE_DEVICES": ""}


def _arguments(client: Any, plan: LaunchPlan, container: ContainerPlan, node: NodePlan) -> dict[str, Any]:
    """What docker's SDK is told: the same as the run's Compose file says."""
    arguments: dict[str, Any] = {
        "hostname": node.name,
        "entrypoint": [],
        "working_dir": container.workdir,
        "user": container.user,
        "labels": {**plan.labels, names.LABEL_NODE: node.name},
        "mounts": [Mount(m.target, m.source, type="bind", read_only=m.read_only) for m in container.mounts],
        "ulimits": [Ulimit(name=u.name, soft=u.soft, hard=u.hard) for u in container.ulimits],
        "shm_size": container.shm_size,
        "init": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "log_config": LogConfig(type=LogConfig.types.JSON, config={"max-size": "64m", "max-file": "2"}),
        "network": "bridge",
    }
    if plan.network is not None:
        endpoint = client.api.create_endpoint_config(aliases=[node.name], ipv4_address=node.address)
        peers = {peer.name: peer.address for peer in plan.nodes if peer.index != node.index}
        arguments |= {
            "network": plan.network.name,
            "networking_config": {plan.network.name: endpoint},
            "extra_hosts": peers,
        }
    return arguments
