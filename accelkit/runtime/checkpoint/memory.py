"""Bytes of tensors: seen in place on the CPU, in pieces from everywhere else."""

import ctypes
from collections.abc import Iterator
from typing import Any, Final

import torch

from accelkit.runtime import structure

STAGE: Final = 16 * 2**20
"""Most bytes that are copied at a time, where a tensor cannot be seen in place."""


def size_of(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()


def is_in_place(tensor: torch.Tensor) -> bool:
    """Whether the elements lie in this process's memory, one after the other."""
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def view(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor that is in place. The view does not keep the tensor alive."""
    size = size_of(tensor)
    if not size:
        return memoryview(bytearray())
    return memoryview((ctypes.c_ubyte * size).from_address(tensor.data_ptr())).cast("B")


def pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """A tensor cut along its elements' order into parts of at most `STAGE` bytes (or one row); parts share its memory."""
    if tensor.is_contiguous():
        yield from tensor.view(-1).split(max(1, STAGE // tensor.element_size()))  # type: ignore[no-untyped-call]
    elif size_of(tensor) <= STAGE:
        yield tensor
    else:
        yield from tensor.split(max(1, STAGE * len(tensor) // size_of(tensor)))  # type: ignore[no-untyped-call]


def read_pieces(tensor: torch.Tensor) -> Iterator[memoryview]:
    """The bytes of any tensor with strides, in the order of its elements. Each view is valid until the next one."""
    tensor = tensor.detach()
    if is_in_place(tensor):
        yield view(tensor)
        return
    for part in pieces(tensor):
        staged = part.to("cpu").contiguous().resolve_conj().resolve_neg()
        yield view(staged)


def own(data: Any) -> Any:
    """A structure with its tensors in memory of their own: a file can be changed or cut short under a view of it."""
    return structure.map_leaves(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, data)
