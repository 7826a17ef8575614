"""The plan of a run: everything that is decided before anything happens. Frozen, and JSON through the contract's codec.

`--dry-run` prints it, the record keeps it, a supervisor or `kit reproduce` starts from it.
"""

from dataclasses import field
from typing import Final, Literal

from accelkit.contract import names
from accelkit.contract.data import data
from accelkit.contract.spec import LaunchSpec

PLAN_VERSION: Final = 1


@data
class Mount:
    """A bind mount: a host path at a path in the container."""

    source: str
    target: str
    read_only: bool = True


@data
class Ulimit:
    """A limit of a container; -1 is unlimited."""

    name: str
    soft: int
    hard: int


@data
class ImagePlan:
    """The image that every node of a run uses."""

    reference: str
    """What the user asked for: a hardware image's name or a tag."""
    tag: str
    """What the engine is asked for."""
    id: str
    """The engine's ID (`sha256:...`): what actually runs."""
    digests: tuple[str, ...] = ()
    """Repository digests, where the engine knows them."""
    hardware: str = "cpu"
    """Name of the hardware image it was built from (label accelkit.image), else cpu."""
    driver: str = ""
    """The oldest driver that it runs with (label accelkit.driver); empty where that is no matter."""
    capabilities: str = ""
    """Compute capabilities of its kernels (label accelkit.capabilities); a plus at the end: and newer ones."""


@data
class EngineDevices:
    """What the engine can pass to containers."""

    runtimes: tuple[str, ...] = ()
    cdi_folders: tuple[str, ...] = ()
    """Where it looks for CDI specifications; empty where it knows no CDI."""
    cpus: int | None = None
    """CPUs of its machine."""


@data
class DevicePlan:
    """How containers get their hardware."""

    environment: dict[str, str] = field(default_factory=dict)
    driver: str | None = None
    """Driver of the device request, by UUID."""
    capabilities: tuple[str, ...] = ()
    cdi: tuple[str, ...] = ()
    """CDI devices instead of a request."""
    paths: tuple[str, ...] = ()
    """Device files."""
    groups: tuple[str, ...] = ()
    """IDs of the groups that own them."""
    privileged: bool = False
    host_network: bool = False
    memlock: bool = False
    """Locked memory as much as the machine allows."""


@data
class ContainerPlan:
    """What all containers of a run share, whatever starts them (Compose, testcontainers, ...)."""

    image: ImagePlan
    user: str
    """UID:GID."""
    workdir: str
    mounts: tuple[Mount, ...]
    env: dict[str, str] = field(default_factory=dict)
    """Of the container: HOME, PYTHONPATH, ... (what the user asked for is in the launch spec)."""
    shm_size: int
    """Bytes."""
    ulimits: tuple[Ulimit, ...] = ()
    cpus: float | None = None
    memory: int | None = None
    """Bytes."""
    gpus: tuple[str, ...] = ()
    """GPU indices or UUIDs; ("all",) for all."""
    devices: DevicePlan = field(default_factory=DevicePlan)
    secrets: dict[str, str] = field(default_factory=dict)
    """Name -> file on the host that holds the value while the run lives. The value itself is never here."""
    stop_grace: int = 8
    """Seconds between the engine's SIGTERM and its SIGKILL."""


@data
class NetworkPlan:
    """The run's own network; only with several containers."""

    name: str
    subnet: str
    """CIDR that no other network of the engine and no route of this machine uses."""


@data
class NodePlan:
    """One node: a container, or a process group of this machine."""

    index: int
    name: str
    """node0, node1, ...: alias, hostname and log prefix."""
    container_name: str | None = None
    address: str | None = None
    """Its fixed address on the run's network."""


@data
class LaunchPlan:
    """The whole plan."""

    version: int = PLAN_VERSION
    backend: Literal["docker", "local"]
    spec: LaunchSpec
    nodes: tuple[NodePlan, ...]
    run_dir: str
    """On the host: `.accelkit/runs/ID`."""
    workdir: str
    """On the host: where `kit run` was typed (or the code that `kit reproduce` laid out)."""
    runtime_digest: str
    """Digest of the staged runtime."""
    runtime_dir: str
    """On the host: the staged, read-only copy."""
    python: str | None = None
    """Interpreter of the ranks (local); in containers it is the image's `python3`."""
    container: ContainerPlan | None = None
    network: NetworkPlan | None = None
    timeout: float | None = None
    """Seconds."""

    @property
    def run_id(self) -> str:
        """The run's ID."""
        return self.spec.run_id

    @property
    def labels(self) -> dict[str, str]:
        """On everything that is made for this run."""
        return {names.LABEL_RUN: self.run_id}
