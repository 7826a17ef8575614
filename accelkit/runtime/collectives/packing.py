"""Tensors in and out of flat buffers, and the arithmetic of padding and reducing. Nothing here communicates."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from accelkit.runtime import structure

_ODD_INTEGERS: Final = (torch.int16, torch.uint16, torch.uint32, torch.uint64)
_ALIGN: Final = 16
"""Bytes: every type can be viewed at a multiple of it."""


def by_device(leaves: Sequence[torch.Tensor]) -> list[list[int]]:
    """Places of the leaves, a list per device."""
    return _group(leaves, lambda leaf: leaf.device)


def by_device_and_type(leaves: Sequence[torch.Tensor]) -> list[list[int]]:
    """Places of the leaves, a list per device and type."""
    return _group(leaves, lambda leaf: (leaf.device, leaf.dtype))


def _group(leaves: Sequence[torch.Tensor], key: Callable[[torch.Tensor], Any]) -> list[list[int]]:
    groups: dict[Any, list[int]] = {}
    for place, leaf in enumerate(leaves):
        groups.setdefault(key(leaf), []).append(place)
    return list(groups.values())


def signature(data: Any, *, shapes: bool = True) -> str:
    """What two ranks must have in common to exchange `data`: paths, devices, types, and shapes or numbers of dimensions."""
    return ";".join(f"{path}={_build_of(leaf, shapes)}" for path, leaf in structure.walk(data))


def _build_of(leaf: Any, shapes: bool) -> str:
    if not isinstance(leaf, torch.Tensor):
        return type(leaf).__qualname__
    if leaf.is_nested:
        return "nested"
    shape = tuple(leaf.shape) if shapes else leaf.dim()
    return f"{leaf.device.type} {leaf.dtype} {shape}"


def describe_kinds(data: Any, stop: structure.Predicate) -> str:
    """What two ranks must have in common to gather objects: paths, and shapes of tensors; sequences may differ in length."""
    return ";".join(
        f"{path}={_build_of(leaf, True) if isinstance(leaf, torch.Tensor) else _sort_of(leaf, stop)}"
        for path, leaf in structure.walk(data, stop=stop)
    )


def _sort_of(leaf: Any, stop: structure.Predicate) -> str:
    return "sequence" if stop(leaf) else "object"


def as_bytes(leaf: torch.Tensor) -> torch.Tensor:
    """The values of a tensor as a flat tensor of bytes; a view where its memory allows."""
    leaf = leaf.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return (torch.view_as_real(leaf).reshape(-1) if leaf.is_complex() else leaf).view(torch.uint8)


def from_bytes(rows: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The inverse of :func:`as_bytes` for a matrix of bytes whose rows hold one tensor each: `(rows, numel)`."""
    if not like.is_complex():
        return rows.view(like.dtype)
    real = rows.view(like.dtype.to_real()).reshape(rows.shape[0], like.numel(), 2)
    return torch.view_as_complex(real)


def pack(leaves: Sequence[torch.Tensor]) -> torch.Tensor:
    """The values of all leaves in one flat tensor of bytes. A single leaf is not copied when its memory is contiguous."""
    if len(leaves) == 1:
        return as_bytes(leaves[0])
    sizes = [leaf.numel() * leaf.element_size() for leaf in leaves]
    offsets = _offsets(sizes)
    buffer = torch.zeros(offsets[-1], dtype=torch.uint8, device=leaves[0].device)
    for leaf, offset, size in zip(leaves, offsets, sizes, strict=False):
        buffer[offset : offset + size] = as_bytes(leaf)
    return buffer


def unpack(buffer: torch.Tensor, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Per leaf, the tensors of all rows of `buffer` (a packed row per rank) joined along their first dimension."""
    rows = buffer.shape[0]
    return [
        values.reshape((rows * leaf.shape[0], *leaf.shape[1:]) if leaf.dim() else (rows,))
        for values, leaf in zip(_columns(buffer, leaves), leaves, strict=True)
    ]


def unpack_one(buffer: torch.Tensor, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The leaves that a flat buffer was packed from."""
    columns = _columns(buffer.unsqueeze(0), leaves)
    return [values.reshape(leaf.shape) for values, leaf in zip(columns, leaves, strict=True)]


def _columns(buffer: torch.Tensor, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    sizes = [leaf.numel() * leaf.element_size() for leaf in leaves]
    offsets = _offsets(sizes) if len(leaves) > 1 else [0]
    found = []
    for leaf, offset, size in zip(leaves, offsets, sizes, strict=False):
        if size:
            found.append(from_bytes(buffer[:, offset : offset + size], leaf))
        else:
            found.append(torch.empty((buffer.shape[0], 0), dtype=leaf.dtype, device=leaf.device))
    return found


def _offsets(sizes: Sequence[int]) -> list[int]:
    """Where each leaf starts, and where the last one ends, all aligned."""
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + -(-size // _ALIGN) * _ALIGN)
    return offsets


def size_at(leaf: Any, dim: int) -> int:
    """Size of a tensor along `dim`; -1 when it has no such dimension."""
    if not isinstance(leaf, torch.Tensor) or leaf.is_nested or not -leaf.dim() <= dim < leaf.dim():
        return -1
    return int(leaf.shape[dim])


def pad(leaf: torch.Tensor, dim: int, size: int, value: float, *, first: bool) -> torch.Tensor:
    """The tensor enlarged to `size` along `dim`, filled with `value` behind (or before, with `first`); its type stays."""
    missing = size - leaf.shape[dim]
    shape = list(leaf.shape)
    shape[dim] = missing
    filler = torch.full(shape, value, dtype=leaf.dtype, device=leaf.device)
    return torch.cat([filler, leaf] if first else [leaf, filler], dim=dim)


def for_reduction(leaf: torch.Tensor, reduction: str) -> torch.Tensor:
    """What is sent for a leaf: no backend takes every type, and gloo adds half precision badly."""
    leaf = leaf.detach().resolve_conj().resolve_neg()
    if leaf.dtype is torch.bool:
        return leaf.to(torch.uint8 if reduction == "max" else torch.int64)
    if leaf.dtype in (torch.float16, torch.bfloat16) and leaf.device.type == "cpu":
        return leaf.float()
    return leaf.to(torch.int64) if leaf.dtype in _ODD_INTEGERS else leaf


def flatten(leaves: Sequence[torch.Tensor]) -> torch.Tensor:
    """All values in one new flat tensor."""
    return torch.cat([leaf.reshape(-1) for leaf in leaves])


def unflatten(flat: torch.Tensor, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The inverse of :func:`flatten`; the parts are tensors of their own."""
    parts = torch.split(flat, [leaf.numel() for leaf in leaves])
    if len(leaves) > 1:
        parts = tuple(part.clone() for part in parts)
    return [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]


def reduced(work: torch.Tensor, leaf: torch.Tensor, reduction: str, size: int, scale: float) -> torch.Tensor:
    """The finished value of a leaf from what was reduced: divided, scaled, and of the right type."""
    if reduction == "mean":
        work = work / size
    if scale != 1.0:
        work = work * scale
    if leaf.is_floating_point() or (reduction != "mean" and scale == 1.0 and not _counts(leaf, reduction)):
        return work.to(leaf.dtype)
    return work


def _counts(leaf: torch.Tensor, reduction: str) -> bool:
    return leaf.dtype is torch.bool and reduction == "sum"
