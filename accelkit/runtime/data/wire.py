"""A batch as bytes: what rank 0 sends when it reads for the others. Nothing here communicates.

A row holds what one rank gets in one step: a header of fixed size, the layout (structure, types and shapes, only when it is
another one than in the row before), what is not a tensor, and the bytes of all tensors.
"""

import ctypes
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from accelkit.runtime import structure
from accelkit.runtime.collectives import packing
from accelkit.runtime.data.shard import Tail

HEADER: Final = 64
"""Bytes: the size of the next row, the kind of this one, the lengths of its layout and of its objects; the rest is free."""
_ALIGN: Final = 16
BATCH, NOTHING, FAILURE = 0, 1, 2

Spec = tuple[torch.dtype, tuple[int, ...]] | None
"""Type and shape of a leaf that travels as bytes; None for one that is pickled."""


@dataclass(frozen=True)
class Layout:
    """How a batch is put together again."""

    skeleton: Any
    """The batch with None in the place of every leaf."""
    specs: tuple[Spec, ...]


@dataclass
class Row:
    """What goes into a row, before it is written."""

    kind: int
    layout: bytes = b""
    objects: bytes = b""
    tensors: Sequence[torch.Tensor] = ()

    @property
    def size(self) -> int:
        """Bytes in all."""
        front = HEADER + len(self.layout) + len(self.objects)
        return _aligned(front) + sum(_aligned(leaf.numel() * leaf.element_size()) for leaf in self.tensors)

    def write(self, row: torch.Tensor) -> None:
        """Fill a row of bytes; the size of the next one is left to be filled in."""
        head = (0, self.kind, len(self.layout), len(self.objects))
        front = b"".join([*(number.to_bytes(8, "little", signed=True) for number in head), bytes(HEADER - 32)])
        front += self.layout + self.objects
        row[: len(front)] = torch.frombuffer(bytearray(front), dtype=torch.uint8)
        at = _aligned(len(front))
        for leaf in self.tensors:
            flat = packing.as_bytes(leaf)
            row[at : at + flat.numel()] = flat
            at += _aligned(flat.numel())


class Encoder:
    """Makes the rows of one rank; it remembers which layout that rank knows."""

    def __init__(self) -> None:
        self._known: Any = object()  # equal to no batch's

    def encode(self, batch: Any, tail: Tail | None) -> Row:
        """A batch, and what is to be known of its round. Raises what pickle raises for objects that cannot travel."""
        leaves: list[Any] = []
        signature = _sign(batch, leaves)
        layout = b""
        if signature != self._known:
            skeleton = structure.map_leaves(lambda _: None, batch)
            layout = pickle.dumps(Layout(skeleton, tuple(map(_spec, leaves))))
            self._known = signature
        objects = [leaf for leaf in leaves if not _travels_as_bytes(leaf)]
        packed = pickle.dumps((tail, objects)) if objects or tail is not None else b""
        return Row(BATCH, layout, packed, [leaf.detach().cpu() for leaf in leaves if _travels_as_bytes(leaf)])


class Decoder:
    """Reads the rows of one rank."""

    def __init__(self) -> None:
        self._layout: Layout | None = None

    def decode(self, row: torch.Tensor) -> tuple[int, int, Any, Tail | None]:
        """The size of the next row, the kind of this one, and the batch (text of a failure) with its tail."""
        following, kind, layout, objects = row[:32].view(torch.int64).tolist()
        if layout:
            self._layout = _load(row, HEADER, layout)
        tail, others = _load(row, HEADER + layout, objects) if objects else (None, [])
        if kind != BATCH or self._layout is None:
            return following, kind, others, tail
        at, rest = _aligned(HEADER + layout + objects), iter(others)
        values = []
        for spec in self._layout.specs:
            if spec is None:
                values.append(next(rest))
                continue
            dtype, shape = spec
            length = dtype.itemsize
            for size in shape:
                length *= size
            values.append(row[at : at + length].view(dtype).view(shape))
            at += _aligned(length)
        return following, kind, structure.with_leaves(self._layout.skeleton, values), tail


def failure(text: str) -> Row:
    """A row that says why there is no batch."""
    return Row(FAILURE, objects=pickle.dumps((None, text)))


def _load(row: torch.Tensor, start: int, length: int) -> Any:
    part = row[start : start + length].cpu()
    return pickle.loads(ctypes.string_at(part.data_ptr(), length))  # noqa: S301  (rank 0 of this run has written it)


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _travels_as_bytes(leaf: Any) -> bool:
    return type(leaf) is torch.Tensor and leaf.layout is torch.strided and not leaf.is_quantized and not leaf.is_nested


def _spec(leaf: Any) -> Spec:
    return (leaf.dtype, tuple(leaf.shape)) if _travels_as_bytes(leaf) else None


def _sign(data: Any, leaves: list[Any]) -> Any:
    """What two batches of one layout have in common; collects the leaves.

    For a container that may carry more than its items it is equal to nothing else.
    """
    kind = type(data)
    if kind is dict:
        return kind, tuple(data), tuple([_sign(value, leaves) for value in data.values()])
    if kind is list or (isinstance(data, tuple) and (kind is tuple or hasattr(data, "_fields"))):
        return kind, tuple([_sign(value, leaves) for value in data])
    if not structure.is_container(data):
        leaves.append(data)
        return _spec(data)
    for _, value in structure.children(data):
        _sign(value, leaves)
    return object()
