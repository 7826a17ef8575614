"""What scripts ask about the machine that a process runs on, and where on it the process computes."""

import json
import os
import platform
import re
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from accelkit.runtime import devices, env

_OLDEST_KERNEL: Final = (5, 5)
_DRIVER_OF_P2P: Final = (550, 40, 7)
"""The first NVIDIA driver under which GeForce RTX 40 cards that cannot talk to each other say so."""
_CONFIG: Final = """\
# Written by write_basic_config. `kit config show` explains every key, `kit config` writes them all.
version: 1
run:
  precision: {precision}
  procs_per_node: {ranks}
"""


@dataclass
class CPUInformation:
    """This process among those of the run, as launchers tell it."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1


def get_cpu_distributed_information() -> CPUInformation:
    """Rank and number of ranks, of all nodes and of this one."""
    world = env.read_world()
    return CPUInformation(world.rank, world.size, world.local_rank, env.local_world_size(world.size))


def get_current_device_type() -> tuple[str, str]:
    """How several ranks of this machine would work together, and the name of their devices: ("MULTI_GPU", "cuda")."""
    kind = devices.choose(cpu=False)
    return kind.distributed_type.value, kind.name


def get_gpu_info() -> tuple[list[str], int]:
    """Names of the CUDA devices that this process sees, and their number."""
    count = torch.cuda.device_count()
    return [torch.cuda.get_device_name(index) for index in range(count)], count


def get_driver_version() -> str | None:
    """The version of the NVIDIA driver; None without one."""
    try:
        told = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", told)
    return found[1] if found else None


def check_cuda_p2p_ib_support() -> bool:
    """Whether GPUs may be told to talk to each other directly: not GeForce RTX 40 cards under a driver that is too old to say no."""
    names, count = get_gpu_info()
    driver = get_driver_version()
    if count < 2 or driver is None or not any("RTX 40" in name for name in names):
        return True
    return tuple(int(part) for part in driver.split(".")) >= _DRIVER_OF_P2P


def check_os_kernel() -> None:
    """Warn of a Linux kernel under which processes that share memory are known to hang."""
    found = re.match(r"(\d+)\.(\d+)", platform.release())
    if sys.platform == "linux" and found and (int(found[1]), int(found[2])) < _OLDEST_KERNEL:
        oldest = ".".join(map(str, _OLDEST_KERNEL))
        warnings.warn(
            f"Linux {platform.release()} is older than {oldest}: ranks may hang; use a newer kernel", stacklevel=2
        )


def are_libraries_initialized(*library_names: str) -> list[str]:
    """Those of the libraries that this process has imported already."""
    return [name for name in library_names if name in sys.modules]


def set_numa_affinity(local_process_index: int, verbose: bool | None = None) -> None:
    """Let this process compute on the CPUs next to its CUDA device only; nothing where the machine does not say which.

    `verbose` prints them.
    """
    cpus = _cpus_of_gpu(local_process_index) & os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    if not cpus:
        return
    os.sched_setaffinity(0, cpus)
    if verbose:
        sys.stdout.write(f"local rank {local_process_index} computes on CPUs {sorted(cpus)}\n")


def override_numa_affinity(local_process_index: int, verbose: bool | None = None) -> None:
    """The same as :func:`set_numa_affinity`."""
    set_numa_affinity(local_process_index, verbose)


def _cpus_of_gpu(index: int) -> set[int]:
    if index >= torch.cuda.device_count():
        return set()
    found: Any = torch.cuda.get_device_properties(index)
    address = f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"
    try:
        return parse_cpus(Path(f"/sys/bus/pci/devices/{address}/local_cpulist").read_text(encoding="ascii"))
    except OSError:
        return set()


def parse_cpus(text: str) -> set[int]:
    """CPUs of a list as the kernel writes it: `0-3,8`."""
    spans = [part.split("-") for part in text.strip().split(",") if part]
    return {cpu for span in spans for cpu in range(int(span[0]), int(span[-1]) + 1)}


def write_basic_config(mixed_precision: str = "no", save_location: str | os.PathLike[str] | None = None) -> Path | bool:
    """Write a config for `kit run` with a rank per device of this machine: the path, or False where a file is there already.

    `save_location`: None is the user's default config. Raises ValueError for a precision that there is not.
    """
    if mixed_precision not in ("no", "fp16", "bf16", "fp8"):
        raise ValueError(f"mixed_precision={mixed_precision!r}: must be one of no, fp16, bf16, fp8")
    path = Path(save_location) if save_location is not None else env.user_config()
    if path.exists():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    text = _CONFIG.format(precision=json.dumps(mixed_precision), ranks=max(1, torch.cuda.device_count()))
    path.write_text(text, encoding="utf-8")
    return path
