"""Kinds of device as data: which one a rank takes, and what it can do."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch

from accelkit.runtime.errors import UnsupportedError
from accelkit.runtime.settings import DistributedType


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of device."""

    name: str
    """torch's name for the type."""
    backend: str
    """The backend of torch.distributed that its tensors travel by."""
    group: str
    """What `init_process_group` is told, so that tensors on the CPU can travel too."""
    distributed_type: DistributedType
    is_available: Callable[[], bool]
    supports: Callable[[str], bool]
    """Whether a precision can be computed on it."""
    indexed: bool
    """Whether local ranks take one device each."""


def _cpu_supports(precision: str) -> bool:
    return precision in ("no", "bf16", "fp16")


def _cuda_supports(precision: str) -> bool:
    if precision == "fp8":
        return torch.cuda.get_device_capability() >= (8, 9)
    return precision != "bf16" or torch.cuda.is_bf16_supported(including_emulation=False)


CPU: Final = Kind(
    name="cpu",
    backend="gloo",
    group="gloo",
    distributed_type=DistributedType.MULTI_CPU,
    is_available=lambda: True,
    supports=_cpu_supports,
    indexed=False,
)
CUDA: Final = Kind(
    name="cuda",
    backend="nccl",
    group="cpu:gloo,cuda:nccl",
    distributed_type=DistributedType.MULTI_GPU,
    is_available=torch.cuda.is_available,
    supports=_cuda_supports,
    indexed=True,
)
KINDS: Final = (CUDA, CPU)
"""In the order of preference."""


def choose(*, cpu: bool) -> Kind:
    """The kind of device to use: the first that this machine has; `cpu` forces the CPU."""
    return CPU if cpu else next(kind for kind in KINDS if kind.is_available())


def place(kind: Kind, local_rank: int) -> torch.device:
    """The device of a local rank, made current. Raises UnsupportedError when there are fewer devices than local ranks."""
    if not kind.indexed:
        return torch.device(kind.name)
    count = torch.accelerator.device_count()
    if local_rank >= count:
        raise UnsupportedError(
            f"local rank {local_rank} needs device {kind.name}:{local_rank}, but this node has {count}",
            hint="start at most one rank per device (`kit run --procs-per-node`), or use Accelerator(cpu=True)",
        )
    device = torch.device(kind.name, local_rank)
    torch.accelerator.set_device_index(local_rank)
    return device


def of(device: torch.device) -> Kind:
    """The kind that a device is of."""
    return next(kind for kind in KINDS if kind.name == device.type)
