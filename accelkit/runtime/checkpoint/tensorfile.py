"""The safetensors format: written from tensors where they lie, read into tensors where they lie.

A file is the size of its header (eight bytes, little endian), the header as JSON, and the tensors' bytes without gaps. Names that
share one tensor are stored once; the metadata says which name is kept for which.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import torch

from accelkit.contract.safetensors_layout import TORCH_NAMES
from accelkit.runtime.checkpoint import memory
from accelkit.runtime.errors import CheckpointError

_CODES: Final[dict[torch.dtype, str]] = {
    getattr(torch, name): code for code, name in TORCH_NAMES.items() if hasattr(torch, name)
}
_DTYPES: Final = {code: dtype for dtype, code in _CODES.items()}
_LARGEST_HEADER: Final = 100_000_000


class Sink(Protocol):
    """Where bytes go."""

    def write(self, data: Any) -> int:
        """Write all of `data`."""


@dataclass(frozen=True)
class Slot:
    """Where a tensor lies in a file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    """Its first byte, counted from the beginning of the file."""


@dataclass(frozen=True)
class Layout:
    """What a file holds."""

    slots: dict[str, Slot]
    aliases: dict[str, str] = field(default_factory=dict)
    """Names that share another one's tensor: name -> the name that is stored."""

    def find(self, name: str) -> Slot | None:
        """The place of a tensor, by its own name or by the one it shares."""
        return self.slots.get(self.aliases.get(name, name))

    @property
    def names(self) -> set[str]:
        """All names, shared ones included."""
        return {*self.slots, *self.aliases}


def fits(value: Any) -> bool:
    """Whether the format can hold a value: a plain tensor with strides, of a type it knows."""
    return type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout == torch.strided and value.dtype in _CODES


def find_aliases(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Names of tensors that are exactly another one's memory: name -> the first name with it."""
    first: dict[Any, str] = {}
    aliases = {}
    for name, tensor in tensors.items():
        if not tensor.numel():
            continue
        memory_of = tensor.data_ptr() or tensor.untyped_storage()._cdata  # noqa: SLF001  (XLA's memory has no address)
        place = (tensor.device, memory_of, tensor.dtype, tensor.shape, tensor.stride())
        kept = first.setdefault(place, name)
        if kept != name:
            aliases[name] = kept
    return aliases


def write(file: Sink, tensors: Mapping[str, torch.Tensor], aliases: Mapping[str, str]) -> None:
    """Write tensors, without those that `aliases` names."""
    stored = {name: tensor for name, tensor in tensors.items() if name not in aliases}
    order = sorted(stored, key=lambda name: (-stored[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **aliases}}
    position = 0
    for name in order:
        size = memory.size_of(stored[name])
        header[name] = {
            "dtype": _CODES[stored[name].dtype],
            "shape": list(stored[name].shape),
            "data_offsets": [position, position + size],
        }
        position += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for name in order:
        for piece in memory.read_pieces(stored[name]):
            file.write(piece)


def read_layout(path: Path) -> Layout:
    """What a file holds. Raises CheckpointError when it is not a safetensors file, or is cut short."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if length > min(size - 8, _LARGEST_HEADER):
            raise CheckpointError(f"{path}: not a safetensors file, or cut short")
        try:
            header = json.loads(file.read(length))
            return _parse(header, length + 8, size)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(f"{path}: its header is damaged ({error})") from error


def _parse(header: dict[str, Any], base: int, size: int) -> Layout:
    metadata = header.pop("__metadata__", {})
    slots = {}
    for name, entry in header.items():
        start, stop = entry["data_offsets"]
        slot = Slot(_DTYPES[entry["dtype"]], tuple(entry["shape"]), base + start)
        count = 1
        for length in slot.shape:
            count *= length
        if stop - start != count * slot.dtype.itemsize or start < 0 or base + stop > size:
            raise ValueError(f"{name} does not lie within the file")
        slots[name] = slot
    return Layout(slots, {name: kept for name, kept in metadata.items() if name not in slots and kept in slots})


def read_into(path: Path, slots: Iterable[tuple[Slot, torch.Tensor]]) -> None:
    """Fill tensors, which have the slots' types and shapes, from a file; those on the CPU without a copy between."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with torch.no_grad():
            for slot, tensor in sorted(slots, key=lambda pair: pair[0].start):
                _fill(descriptor, slot.start, tensor.detach(), path)
    finally:
        os.close(descriptor)


def _fill(descriptor: int, start: int, tensor: torch.Tensor, path: Path) -> None:
    if memory.is_in_place(tensor):
        _read_all(descriptor, memory.view(tensor), start, path)
        return
    stage: torch.Tensor | None = None
    for part in memory.pieces(tensor):
        if stage is None or stage.numel() < part.numel():
            stage = torch.empty(part.numel(), dtype=tensor.dtype)
        staged = stage[: part.numel()]
        _read_all(descriptor, memory.view(staged), start, path)
        part.copy_(staged.view(part.shape))
        start += memory.size_of(part)


def _read_all(descriptor: int, target: memoryview, start: int, path: Path) -> None:
    while len(target):
        count = os.preadv(descriptor, [target[: 2**30]], start)
        if not count:
            raise CheckpointError(f"{path}: ends at byte {start}, in the middle of a tensor")
        target, start = target[count:], start + count
