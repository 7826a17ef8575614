"""Collective operations as functions, on the process's own state; the same as the methods of `Accelerator`."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from accelkit.runtime import structure
from accelkit.runtime.state import PartialState


def gather(tensor: Any) -> Any:
    """Tensors of all ranks, joined along their first dimension; nested structures are kept."""
    return PartialState().operations.gather(tensor)


def gather_object(object: Any) -> Any:  # noqa: A002  (the name that users of this API family know)
    """Objects of all ranks, in one list; each rank brings something iterable."""
    return PartialState().operations.gather_object(object)


def reduce(tensor: Any, reduction: str = "mean", scale: float = 1.0) -> Any:
    """Tensors reduced over all ranks ("mean", "sum", "max"), as new tensors. The default differs from `Accelerator.reduce`."""
    return PartialState().operations.reduce(tensor, reduction, scale)


def broadcast(tensor: Any, from_process: int = 0) -> Any:
    """Fill the tensors of every rank with those of rank `from_process`, in place."""
    return PartialState().operations.broadcast(tensor, from_process)


def broadcast_object_list(object_list: list[Any], from_process: int = 0) -> list[Any]:
    """Replace the items of a list by those of rank `from_process`, in place."""
    return PartialState().operations.broadcast_object_list(object_list, from_process)


def pad_across_processes(tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
    """Tensors padded along `dim` to the largest size of any rank; types stay."""
    return PartialState().operations.pad(tensor, dim, pad_index, pad_first)


def wait_for_everyone() -> None:
    """Return when all ranks have called it."""
    PartialState().wait_for_everyone()


def send_to_device(
    tensor: Any,
    device: torch.device | str,
    non_blocking: bool = False,
    skip_keys: str | Sequence[str] | None = None,
) -> Any:
    """A nested structure on a device; values under `skip_keys` stay where they are."""
    keys = (skip_keys,) if isinstance(skip_keys, str) else tuple(skip_keys or ())
    return structure.move(tensor, torch.device(device), non_blocking=non_blocking, skip_keys=keys)


def recursively_apply(
    func: Callable[..., Any],
    data: Any,
    *args: Any,
    test_type: Callable[[Any], bool] = torch.is_tensor,
    error_on_other_type: bool = False,
    **kwargs: Any,
) -> Any:
    """A structure in which each leaf that passes `test_type` is `func(leaf, ...)`. Other leaves stay, or raise TypeError."""

    def apply(leaf: Any) -> Any:
        if test_type(leaf):
            return func(leaf, *args, **kwargs)
        if error_on_other_type:
            raise TypeError(f"{func.__name__} does not take a leaf of type {type(leaf).__name__}")
        return leaf

    return structure.map_leaves(apply, data)


def find_batch_size(data: Any) -> int:
    """Length of the first dimension of the first tensor, depth first. Raises ValueError when there is none."""
    found = structure.find_batch_size(data)
    if found is None:
        raise ValueError(f"no tensor with a first dimension in {structure.describe(data)}")
    return found


def concatenate(data: Sequence[Any], dim: int = 0) -> Any:
    """Structures of tensors joined leaf by leaf; a sequence of one is its item, whatever it is."""
    return data[0] if len(data) == 1 else structure.concatenate(data, dim)


def slice_tensors(data: Any, tensor_slice: slice) -> Any:
    """Each tensor of a structure cut along its first dimension."""
    return structure.slice_tensors(data, tensor_slice)


def convert_to_fp32(tensor: Any) -> Any:
    """Tensors of half precision as float32; everything else as it is."""
    return structure.to_float32(tensor)
