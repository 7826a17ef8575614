"""Bringing what a forward is given, and what it gives, to a device."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from accelkit.runtime import structure


def aligned(data: Any, device: torch.device, skip_keys: Sequence[str] = ()) -> Any:
    """The same structure on a device. Whatever of it is there already is handed on as it is, so that a caller's list can be filled."""
    if _is_there(data, device, skip_keys):
        return data
    if type(data) is tuple:
        return tuple(aligned(value, device, skip_keys) for value in data)
    if type(data) is dict:
        return {key: value if key in skip_keys else aligned(value, device, skip_keys) for key, value in data.items()}
    return structure.move(data, device, skip_keys=skip_keys)


def _is_there(data: Any, device: torch.device, skip_keys: Sequence[str]) -> bool:
    def stop(value: Any) -> bool:
        return hasattr(value, "to")

    if isinstance(data, Mapping) and not hasattr(data, "to"):
        return all(_is_there(value, device, skip_keys) for key, value in data.items() if key not in skip_keys)
    for leaf in structure.leaves(data, stop=stop):
        if isinstance(leaf, torch.Tensor):
            if leaf.device != device:
                return False
        elif hasattr(leaf, "to") and not isinstance(leaf, type):
            return False
    return True


def find_device(data: Any) -> torch.device | None:
    """The device of the first tensor of a structure; None without one."""
    return next((leaf.device for leaf in structure.leaves(data) if isinstance(leaf, torch.Tensor)), None)
