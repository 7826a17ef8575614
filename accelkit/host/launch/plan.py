"""The plan of a run: everything that is decided before anything happens. Frozen, and JSON through the contract's codec.

`--dry-run` prints it, the record keeps it, a supervisor or `kit reproduce` starts from it.
"""

from dataclasses import dataclass, field
from typing import Final, Literal

from accelkit.contract import names
from accelkit.contract.spec import LaunchSpec

PLAN_VERSION: Final = 1


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A bind mount: a host path at a path in the container."""

    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True, kw_only=True)
class Ulimit:
    """A limit of a container; -1 is unlimited."""

    name: str
    soft: int
    hard: int


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
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
    secrets: dict[str, str] = field(default_factory=dict)
    """Name -> file on the host that holds the value while the run lives. The value itself is never here."""
    stop_grace: int = 8
    """Seconds between the engine's SIGTERM and its SIGKILL."""


@dataclass(frozen=True, kw_only=True)
class NetworkPlan:
    """The run's own network; only with several containers."""

    name: str
    subnet: str
    """CIDR that no other network of the engine and no route of this machine uses."""


@dataclass(frozen=True, kw_only=True)
class NodePlan:
    """One node: a container, or a process group of this machine."""

    index: int
    name: str
    """node0, node1, ...: alias, hostname and log prefix."""
    container_name: str | None = None
    address: str | None = None
    """Its fixed address on the run's network."""


@dataclass(frozen=True, kw_only=True)
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
