"""Kinds of device as data: which one a rank takes, and what it can do."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from accelkit.runtime import env, xla
from accelkit.runtime.errors import SettingError, UnsupportedError
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
    strategy: str | None = None
    """The one strategy that trains on it; None: any that is for no other kind."""
    alone: DistributedType = DistributedType.NO
    """How a process alone works on it."""
    is_torch: bool = True
    """Whether torch itself knows the device: its generators, and how parameters move there in place."""


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
XLA: Final = Kind(
    name="xla",
    backend="gloo",
    group="gloo",
    distributed_type=DistributedType.XLA,
    is_available=xla.is_available,
    supports=xla.supports,
    indexed=False,
    strategy="xla",
    alone=DistributedType.XLA,
    is_torch=False,
)
KINDS: Final = (XLA, CUDA, CPU)
"""In the order of preference."""


def choose(*, cpu: bool, strategy: str | None = None) -> Kind:
    """The kind of device to use: the one that the strategy is for, else the first that this machine has; `cpu` forces the CPU.

    Raises SettingError for the CPU and a strategy that is for something else.
    """
    wanted = next((kind for kind in KINDS if kind.strategy is not None and kind.strategy == strategy), None)
    if wanted is not None and cpu:
        raise SettingError(
            f"cpu=True, and strategy={strategy!r}, which is for the device {wanted.name}", hint="leave one of them out"
        )
    return CPU if cpu else wanted or next(kind for kind in KINDS if kind.is_available())


def place(kind: Kind, world: env.World) -> torch.device:
    """The device of this rank, made current. Raises UnsupportedError when there are fewer devices than local ranks."""
    local_rank = world.local_rank
    if not kind.is_torch:
        return xla.place(world)
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


def generators(device: torch.device) -> Any:
    """What has `get_rng_state(device)` and `set_rng_state(state, device)` for a device."""
    return torch.get_device_module(device) if of(device).is_torch else xla


def seed(number: int, device: torch.device) -> None:
    """Seed the generator of a device, where torch's own seeding does not reach it."""
    if not of(device).is_torch:
        xla.seed(number, device)
