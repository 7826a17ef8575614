"""How much memory each device has for a model."""

import os
import warnings
from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from accelkit.runtime.bigmodel.bytesize import convert_file_size_to_int
from accelkit.runtime.bigmodel.sizes import (
    Dtype,
    compute_module_sizes,
    get_max_layer_size,
    get_module_leaves,
    unsplit_classes,
)
from accelkit.runtime.errors import SettingError

MaxMemory = Mapping[Any, float | str]
_HOST_PLACES: Final = ("mps", "cpu", "disk")
_CGROUPS: Final = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Where the two versions of control groups tell this container's limit, its use, and what of that are pages that can be dropped."""


def get_max_memory(max_memory: MaxMemory | None = None) -> dict[int | str, int]:
    """Bytes that each device can take: what is given (bytes, or texts such as "10GiB"), else what is free now.

    Keys are indices of accelerators, "mps", "cpu" and "disk", and come in that order. Without an argument the CPU counts what
    the system, and the container's limit, leave. Raises SettingError (a ValueError) for another key or a bad size.
    """
    if max_memory is None:
        return {**_free_on_accelerators(), "cpu": free_host_memory()}
    unknown = [key for key in max_memory if not (_is_index(key) or key in _HOST_PLACES)]
    if unknown:
        raise SettingError(
            f"max_memory: {', '.join(map(repr, unknown))} is no device",
            hint='keys are the indices of accelerators (0, 1, ...), "mps", "cpu" and "disk"',
        )
    sizes = {int(key) if _is_index(key) else key: convert_file_size_to_int(size) for key, size in max_memory.items()}
    indices = sorted(key for key in sizes if isinstance(key, int))
    available = torch.accelerator.device_count()
    if available and any(index >= available for index in indices):
        warnings.warn(f"max_memory names devices {indices}, but this machine has {available}", stacklevel=2)
    return {key: sizes[key] for key in [*indices, *(place for place in _HOST_PLACES if place in sizes)]}


def _is_index(key: Any) -> bool:
    """Whether a key is the index of an accelerator, of any kind of whole number."""
    return not isinstance(key, bool) and isinstance(key, Integral) and int(key) >= 0


def _free_on_accelerators() -> dict[int | str, int]:
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is None:
        return {}
    if kind.type == "mps":
        return {"mps": free_host_memory()}
    module: Any = torch.get_device_module(kind)
    return {index: module.mem_get_info(index)[0] for index in range(torch.accelerator.device_count())}


def free_host_memory() -> int:
    """Bytes of memory that this process could still take, as the system and its container's limit see it."""
    free = _available_to_system()
    for folder, limit_file, used_file, droppable in _CGROUPS:
        limit, used = _number(Path(folder, limit_file)), _number(Path(folder, used_file))
        if limit is not None and used is not None:
            free = min(free, max(0, limit - used + (_number(Path(folder, "memory.stat"), droppable) or 0)))
    return free


def _available_to_system() -> int:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _number(path: Path, name: str = "") -> int | None:
    """The figure in a file, or the one after a name in it; None where there is none ("max", no such file)."""
    try:
        words = path.read_text(encoding="ascii").split()
    except OSError:
        return None
    place = words.index(name) + 1 if name in words else 0
    return int(words[place]) if words[place : place + 1] and words[place].isdigit() else None


def get_balanced_memory(
    model: nn.Module,
    max_memory: MaxMemory | None = None,
    no_split_module_classes: Sequence[str] | str | None = None,
    dtype: Dtype = None,
    special_dtypes: Mapping[str, Any] | None = None,
    low_zero: bool = False,
) -> dict[int | str, int]:
    """Limits with which `infer_auto_device_map` spreads a model evenly over the accelerators.

    Each gets an even share and a margin of 1.25 x the larger of the largest block and the mean leaf; the last keeps its own
    limit. `low_zero` keeps the first as empty as the others allow. A single accelerator gets 90 % of its free memory when no
    limit is given. Without accelerators the limits are as given.
    """
    given = max_memory is not None
    limits = get_max_memory(max_memory)
    accelerators = [key for key, size in limits.items() if isinstance(key, int) and size > 0]
    if not accelerators:
        return limits
    if len(accelerators) == 1:
        if not given:
            limits[accelerators[0]] = int(limits[accelerators[0]] * 0.9)
        return limits
    sizes = compute_module_sizes(model, dtype, special_dtypes)
    sharing = len(accelerators) - 1 if low_zero else len(accelerators)
    share = sizes[""] // sharing + _margin(model, sizes, unsplit_classes(model, no_split_module_classes))
    for key in accelerators[:-1]:
        limits[key] = min(limits[key], 0 if low_zero and key == accelerators[0] else share)
    if low_zero:
        elsewhere = sum(limits[key] for key in accelerators[1:])
        limits[accelerators[0]] = min(max(0, sizes[""] - elsewhere), get_max_memory(max_memory)[accelerators[0]])
    return limits


def _margin(model: nn.Module, sizes: Mapping[str, int], unsplit: Sequence[str]) -> int:
    """What an even share may be exceeded by, so that blocks that stay whole do not all end on the last device."""
    largest, _ = get_max_layer_size(list(model.named_children()), sizes, unsplit) if unsplit else (0, [])
    tensors = set(get_module_leaves(sizes))
    leaves = get_module_leaves({name: size for name, size in sizes.items() if name not in tensors})
    mean = sum(sizes[name] for name in leaves) // max(len(leaves), 1)
    return int(1.25 * max(largest, mean))
