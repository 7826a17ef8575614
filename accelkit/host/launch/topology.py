"""The topology of a run: how many nodes, how many ranks on each, on which devices. Pure."""

from typing import Protocol

from accelkit.contract.data import data
from accelkit.host.config import syntax
from accelkit.host.config.model import RunConfig
from accelkit.host.errors import UsageError

CPU_SHM = 1 << 30
GPU_SHM = 8 << 30
"""Bytes of /dev/shm by default. Docker's own 64 MiB kill data loader workers and NCCL (SIGBUS, exit code 135)."""


class Gpu(Protocol):
    """What the topology needs to know of a GPU."""

    @property
    def uuid(self) -> str:
        """Its UUID, which stays the same when indices change."""
        ...


@data
class Topology:
    """Nodes, ranks and devices of a run."""

    nodes: int
    procs_per_node: int
    gpus: tuple[str, ...]
    """UUIDs (or indices) of the GPUs that each node gets; empty on CPU."""

    @property
    def world_size(self) -> int:
        """Number of ranks of the whole run."""
        return self.nodes * self.procs_per_node

    @classmethod
    def resolve(cls, config: RunConfig, gpus: tuple[Gpu, ...], *, gpu_image: bool) -> "Topology":
        """The topology that `config` asks for on a machine with these `gpus`.

        Ranks a node default to the node's GPUs, or to 1 on CPU. Raises UsageError for GPUs that are not there and for several
        nodes of one machine that would share GPUs.
        """
        chosen = choose_gpus(config.gpus, gpus, default_all=gpu_image)
        if chosen and config.nodes > 1:
            raise UsageError(
                f"--nodes {config.nodes} with GPUs: containers of one machine would share its {len(chosen)} GPUs",
                hint="use --nodes 1 --procs-per-node N (one container, all GPUs), or --gpus none",
            )
        return cls(nodes=config.nodes, procs_per_node=config.procs_per_node or len(chosen) or 1, gpus=chosen)


def choose_gpus(wanted: str | None, present: tuple[Gpu, ...], *, default_all: bool) -> tuple[str, ...]:
    """UUIDs of the GPUs that `wanted` (syntax gpus) names among `present`. Raises UsageError for one that is not there."""
    choice = syntax.parse_gpus(wanted) if wanted is not None else ("all" if default_all else 0)
    if choice == "all" and wanted is not None and not present:
        raise UsageError("--gpus all: this machine has none", hint="leave it out, or --gpus none; kit env lists GPUs")
    if choice == "all":
        return tuple(gpu.uuid for gpu in present)
    if isinstance(choice, int):
        if choice > len(present):
            raise UsageError(f"--gpus {choice}: this machine has {len(present)}", hint="kit env lists its GPUs")
        return tuple(gpu.uuid for gpu in present[:choice])
    by_name = {gpu.uuid: gpu.uuid for gpu in present} | {str(i): gpu.uuid for i, gpu in enumerate(present)}
    missing = [name for name in choice if name not in by_name]
    if missing:
        raise UsageError(f"--gpus: no GPU {missing[0]}; this machine has {', '.join(by_name) or 'none'}")
    return tuple(by_name[name] for name in choice)
