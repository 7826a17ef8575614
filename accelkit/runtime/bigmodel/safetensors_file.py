"""The safetensors format, read strictly: what a header says is checked against the file before anything is used."""

import json
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, Final

import torch

from accelkit.runtime.bigmodel.failures import CheckpointFileError
from accelkit.runtime.bigmodel.mapping import MappedFile, read_copy

DTYPES: Final[dict[str, torch.dtype]] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "U16": torch.uint16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}
_MAX_HEADER: Final = 100_000_000
_OTHER_FRAMEWORKS: Final = ("tf", "flax", "jax", "paddle")


@dataclass(frozen=True)
class Span:
    """One tensor in the file: offset from the file's start, in bytes."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """Bytes."""
        return prod(self.shape) * self.dtype.itemsize


class SafetensorsFile:
    """One file. Making it maps the file and reads and checks its header; tensors are views of it, or copies.

    Raises CheckpointFileError for a file that is cut short, or whose header is no header, lies about sizes, or names a tensor twice.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = MappedFile(path)
        except OSError as error:
            raise CheckpointFileError(f"{path} cannot be read: {error.strerror or error}") from error
        self.spans = self._read_header()

    @cached_property
    def metadata(self) -> dict[str, str]:
        """What was written beside the tensors."""
        return dict(self._header.get("__metadata__") or {})

    def view(self, name: str) -> torch.Tensor:
        """A tensor as a view of the mapped file."""
        span = self.spans[name]
        return self._file.tensor(span.offset, span.dtype, span.shape)

    def copy(self, name: str) -> torch.Tensor:
        """A tensor in memory of its own."""
        span = self.spans[name]
        return read_copy(self.path, span.offset, span.dtype, span.shape)

    def _read_header(self) -> dict[str, Span]:
        length = int.from_bytes(self._file.read(0, 8), "little") if self._file.size >= 8 else _MAX_HEADER
        start = 8 + length
        if not 2 <= length <= _MAX_HEADER or start > self._file.size:
            raise CheckpointFileError(
                f"{self.path} is not a safetensors file, or is cut short: it has {self._file.size} bytes"
            )
        try:
            self._header: dict[str, Any] = json.loads(self._file.read(8, length), object_pairs_hook=_unique)
        except ValueError as error:
            raise CheckpointFileError(f"{self.path}: the header cannot be understood: {error}") from None
        if not isinstance(self._header, dict):
            raise CheckpointFileError(f"{self.path}: the header is not a table of tensors")
        self._check_framework()
        spans = {name: self._span(name, entry, start) for name, entry in self._header.items() if name != "__metadata__"}
        self._check_layout(spans, start)
        return spans

    def _check_framework(self) -> None:
        framework = self.metadata.get("format")
        if framework in _OTHER_FRAMEWORKS:
            raise CheckpointFileError(
                f"{self.path} was written for {framework!r}, whose weights are laid out in another way",
                hint="use the checkpoint for PyTorch (format 'pt')",
            )

    def _span(self, name: str, entry: Any, start: int) -> Span:
        try:
            dtype, shape, (first, last) = DTYPES[entry["dtype"]], tuple(entry["shape"]), entry["data_offsets"]
            whole = all(type(number) is int and number >= 0 for number in (*shape, first, last))
        except (KeyError, TypeError, ValueError):
            raise CheckpointFileError(
                f"{self.path}: {name!r} has an entry that cannot be understood: {entry!r}"
            ) from None
        span = Span(dtype, shape, start + first)
        if not whole or last - first != span.size:
            raise CheckpointFileError(
                f"{self.path}: {name!r} is said to be {list(shape)} {entry['dtype']} in bytes {first} to {last}, "
                "which is not its size"
            )
        return span

    def _check_layout(self, spans: dict[str, Span], start: int) -> None:
        """Tensors follow each other without a gap and fill the file: nothing overlaps, nothing is missing."""
        end = start
        for name, span in sorted(spans.items(), key=lambda item: (item[1].offset, item[1].size)):
            if span.offset != end:
                raise CheckpointFileError(f"{self.path}: {name!r} does not begin where the tensor before it ends")
            end += span.size
        if end > self._file.size:
            raise CheckpointFileError(f"{self.path} is cut short: {self._file.size} of {end} bytes are there")
        if end < self._file.size:
            raise CheckpointFileError(f"{self.path}: {self._file.size - end} bytes at the end belong to no tensor")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, which must not name anything twice."""
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"{', '.join(map(repr, twice))} stands there twice")
    return made


def load_json(path: Path) -> Any:
    """A JSON file in which no key stands twice. Raises CheckpointFileError that names the file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_unique)
    except (OSError, ValueError) as error:
        raise CheckpointFileError(f"{path} cannot be understood: {error}") from None
