"""Tensors in and out of flat buffers, and the arithmetic of padding and reducing. Nothing here communicates."""

import functools
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


def signature(pairs: Sequence[tuple[str, Any]], *, shapes: bool = True) -> str:
    """What two ranks must have in common to exchange these leaves: paths, devices, types, and shapes or numbers of dimensions."""
    return ";".join([f"{path}={_build_of(leaf, shapes)}" for path, leaf in pairs])


def _build_of(leaf: Any, shapes: bool) -> str:
    if not isinstance(leaf, torch.Tensor):
        return type(leaf).__qualname__
    if leaf.is_nested:
        return "nested"
    shape = tuple(leaf.shape) if shapes else leaf.dim()
    return f"{leaf.device.type} {leaf.dtype} {shape}"


def signature_of_kinds(pairs: Sequence[tuple[str, Any]], stop: structure.Predicate) -> str:
    """What two ranks must have in common to gather objects: paths, and shapes of tensors; sequences may differ in length."""
    return ";".join(
        [
            f"{path}={_build_of(leaf, True) if isinstance(leaf, torch.Tensor) else _sort_of(leaf, stop)}"
            for path, leaf in pairs
        ]
    )


def _sort_of(leaf: Any, stop: structure.Predicate) -> str:
    return "sequence" if stop(leaf) else "object"


def find_fixed(leaves: Sequence[Any]) -> int:
    """The place of the first tensor whose elements cannot be written one by one, in place; -1 without one."""
    return next((place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and _is_fixed(leaf)), -1)


def _is_fixed(leaf: torch.Tensor) -> bool:
    if leaf.is_inference() and not torch.is_inference_mode_enabled():
        return True
    if leaf.is_nested or leaf.layout is not torch.strided:
        return False
    return any(not step and size > 1 for step, size in zip(leaf.stride(), leaf.shape, strict=True))


def as_bytes(leaf: torch.Tensor) -> torch.Tensor:
    """The values of a tensor as a flat tensor of bytes; a view where its memory allows."""
    leaf = leaf.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return (torch.view_as_real(leaf).reshape(-1) if leaf.is_complex() else leaf).view(torch.uint8)


def from_bytes(flat: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The inverse of :func:`as_bytes`: a flat view of another type. The bytes begin at a multiple of the type's size."""
    if not dtype.is_complex:
        return flat.view(dtype)
    return torch.view_as_complex(flat.view(dtype.to_real()).reshape(flat.numel() // dtype.itemsize, 2))


def packed_size(leaves: Sequence[torch.Tensor]) -> int:
    """Bytes that the values of all leaves take, each beginning at a multiple of 16."""
    if len(leaves) == 1:
        return leaves[0].numel() * leaves[0].element_size()
    return sum(-(-leaf.numel() * leaf.element_size() // _ALIGN) * _ALIGN for leaf in leaves)


@torch.no_grad()
def pack_into(buffer: torch.Tensor, leaves: Sequence[torch.Tensor]) -> None:
    """Write the values of all leaves into a flat tensor of bytes of :func:`packed_size`. Gaps between leaves are left as they are."""
    offset = 0
    for leaf in leaves:
        size = leaf.numel() * leaf.element_size()
        if size:
            buffer[offset : offset + size].view(leaf.dtype).view(leaf.shape).copy_(leaf)
        offset += -(-size // _ALIGN) * _ALIGN


def pack(leaves: Sequence[torch.Tensor]) -> torch.Tensor:
    """The values of all leaves in one flat tensor of bytes. A single leaf is not copied when its memory is contiguous."""
    if len(leaves) == 1:
        return as_bytes(leaves[0])
    buffer = torch.zeros(packed_size(leaves), dtype=torch.uint8, device=leaves[0].device)
    pack_into(buffer, leaves)
    return buffer


def unpack(rows: torch.Tensor | Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Per leaf, the tensors of all ranks joined along their first dimension.

    `rows` holds the bytes that each rank has packed. They are copied, unless they are a contiguous matrix, which is shared.
    """
    found = []
    for leaf, (start, end) in zip(leaves, _spans(leaves), strict=True):
        shape = (len(rows) * leaf.shape[0], *leaf.shape[1:]) if leaf.dim() else (len(rows),)
        found.append(from_bytes(_column(rows, start, end), leaf.dtype).reshape(shape))
    return found


def _column(rows: torch.Tensor | Sequence[torch.Tensor], start: int, end: int) -> torch.Tensor:
    if isinstance(rows, torch.Tensor):
        return rows[:, start:end].reshape(-1)
    return torch.cat([row[start:end] for row in rows])


def unpack_one(buffer: torch.Tensor, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The leaves that a flat buffer was packed from."""
    return [
        from_bytes(buffer[start:end].clone(), leaf.dtype).reshape(leaf.shape)
        for leaf, (start, end) in zip(leaves, _spans(leaves), strict=True)
    ]


def _spans(leaves: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """Where each leaf starts and ends among the packed bytes."""
    spans, offset = [], 0
    for leaf in leaves:
        size = leaf.numel() * leaf.element_size()
        spans.append((offset, offset + size))
        offset += -(-size // _ALIGN) * _ALIGN
    return spans


def size_at(leaf: Any, dim: int) -> int:
    """Size of a tensor along `dim`; -1 when it has no such dimension."""
    if not isinstance(leaf, torch.Tensor) or leaf.is_nested or not -leaf.dim() <= dim < leaf.dim():
        return -1
    return int(leaf.shape[dim])


def pad(leaf: torch.Tensor, dim: int, size: int, value: float, *, first: bool) -> torch.Tensor:
    """The tensor enlarged to `size` along `dim`, filled with `value` behind (or before, with `first`); its type stays."""
    have = leaf.shape[dim]
    shape = list(leaf.shape)
    shape[dim] = size
    whole = torch.empty(shape, dtype=leaf.dtype, device=leaf.device)
    start = size - have if first else 0
    whole.narrow(dim, start, have).copy_(leaf)
    exact = torch.tensor(value, dtype=None if isinstance(value, int) else torch.float64)
    filler = exact.to(leaf.dtype).to(leaf.device)  # not every type can be filled
    whole.narrow(dim, 0 if first else have, size - have).copy_(filler)
    return whole


def for_reduction(leaf: torch.Tensor, reduction: str) -> torch.Tensor:
    """What is sent for a leaf: no backend takes every type, gloo adds half precision badly, and nothing adds 8 bits."""
    leaf = leaf.detach().resolve_conj().resolve_neg()
    if reduction == "mean":
        leaf = _with_room(leaf)
    if leaf.dtype is torch.bool:
        return leaf.to(torch.uint8 if reduction == "max" else torch.int64)
    if leaf.is_floating_point() and leaf.element_size() < (3 if leaf.device.type == "cpu" else 2):
        return leaf.float()
    return leaf.to(torch.int64) if leaf.dtype in _ODD_INTEGERS else leaf


def _with_room(leaf: torch.Tensor) -> torch.Tensor:
    """In a type that holds the sum, too, of values whose mean is asked for."""
    if leaf.dtype is torch.float16:
        return leaf.float()
    return leaf if leaf.is_floating_point() or leaf.is_complex() else leaf.to(torch.int64)


def combine(values: Sequence[torch.Tensor], reduction: str) -> torch.Tensor:
    """The reduction of one leaf's values, in the order of ranks: the same bits on every rank."""
    return functools.reduce(torch.maximum if reduction == "max" else torch.add, values)


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
