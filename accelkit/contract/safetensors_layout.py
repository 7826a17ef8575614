"""The safetensors format, read strictly: what a header says is checked against the file before anything is used.

Headers alone, never tensors: so both sides can read it, with torch and without.
"""

import json
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any, Final

from accelkit.contract.data import ordered_data

INDEX: Final = ".index.json"
WIDTHS: Final = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E4M3FNUZ": 1,
    "F8_E5M2": 1,
    "F8_E5M2FNUZ": 1,
    "F8_E8M0": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
    "C64": 8,
}
"""Bytes of one value of each dtype of the format."""
TORCH_NAMES: Final = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "I64": "int64",
    "U64": "uint64",
    "F64": "float64",
    "C64": "complex64",
}
"""What torch calls each of them, without `torch.`."""
_MAX_HEADER: Final = 100_000_000
LFS: Final = b"version "
"""How a file begins that Git LFS leaves in the place of one that was not fetched."""


class LayoutError(ValueError):
    """A file of a checkpoint is damaged, or names what it must not. The message begins with the file."""


@ordered_data
class Entry:
    """One tensor in a file."""

    dtype: str
    """As the format spells it."""
    shape: tuple[int, ...]
    offset: int
    """From the file's start, in bytes."""

    @property
    def size(self) -> int:
        """Bytes."""
        return prod(self.shape) * WIDTHS[self.dtype]


@ordered_data
class Layout:
    """What a file holds."""

    tensors: Mapping[str, Entry]
    metadata: Mapping[str, str]
    """What was written beside the tensors."""


def read(path: Path) -> Layout:
    """The layout of a file. Raises LayoutError for one that is missing, cut short, or lies."""
    try:
        with path.open("rb") as file:
            return parse(path, path.stat().st_size, file.read)
    except OSError as error:
        raise LayoutError(f"{path} cannot be read: {error.strerror or error}") from error


def parse(path: Path, size: int, take: Callable[[int], bytes]) -> Layout:
    """The layout of a file of `size` bytes, of which `take` gives so many more from the start on.

    Raises LayoutError for a file that is cut short, or whose header is no header, lies about sizes, or names a tensor twice.
    """
    first = take(8) if size >= 8 else b""
    if first == LFS:
        raise LayoutError(f"{path} is a pointer of Git LFS: fetch the file itself (git lfs pull)")
    length = int.from_bytes(first, "little") if first else _MAX_HEADER
    if not 2 <= length <= _MAX_HEADER or 8 + length > size:
        raise LayoutError(f"{path} is not a safetensors file, or is cut short: it has {size} bytes")
    try:
        header = json.loads(take(length), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise LayoutError(f"{path}: the header cannot be understood: {error}") from None
    metadata = header.pop("__metadata__", None) or {} if isinstance(header, dict) else None
    if not isinstance(metadata, dict):
        raise LayoutError(f"{path}: the header is not a table of tensors")
    entries = {name: _entry(path, name, value, 8 + length) for name, value in header.items()}
    _check_order(path, size, entries, 8 + length)
    return Layout(entries, metadata)


def _entry(path: Path, name: str, value: Any, start: int) -> Entry:
    try:
        dtype, shape, (first, last) = value["dtype"], tuple(value["shape"]), value["data_offsets"]
        whole = all(type(number) is int and number >= 0 for number in (*shape, first, last))
        known = dtype in WIDTHS
    except (KeyError, TypeError, ValueError):
        known = False
    if not known:
        raise LayoutError(f"{path}: {name!r} has an entry that cannot be understood: {value!r}")
    entry = Entry(dtype, shape, start + first) if whole else None
    if entry is None or last - first != entry.size:
        raise LayoutError(
            f"{path}: {name!r} is said to be {list(shape)} {dtype} in bytes {first} to {last}, which is not its size"
        )
    return entry


def _check_order(path: Path, size: int, entries: Mapping[str, Entry], start: int) -> None:
    """Tensors follow each other without a gap and fill the file: nothing overlaps, nothing is missing."""
    end = start
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].offset, item[1].size)):
        if entry.offset != end:
            raise LayoutError(f"{path}: {name!r} does not begin where the tensor before it ends")
        end += entry.size
    if end > size:
        raise LayoutError(f"{path} is cut short: {size} of {end} bytes are there")
    if end < size:
        raise LayoutError(f"{path}: {size - end} bytes at the end belong to no tensor")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, which must not name anything twice."""
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"{', '.join(map(repr, twice))} stands there twice")
    return made


def load_json(path: Path) -> Any:
    """A JSON file in which no key stands twice. Raises LayoutError that names the file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_unique)
    except (OSError, ValueError, RecursionError) as error:
        raise LayoutError(f"{path} cannot be understood: {error}") from None


def weight_map(index: Path) -> dict[str, str]:
    """Tensor -> file, as an index says. Raises LayoutError where it says nothing of the kind."""
    content = load_json(index)
    found = content.get("weight_map", content) if isinstance(content, dict) else None
    if not isinstance(found, dict) or not found or not all(isinstance(name, str) for name in found.values()):
        raise LayoutError(f"{index} has no weight_map from tensors to files")
    return found


def shard(index: Path, name: str) -> Path:
    """A file that an index names, which must be there and lie in the index's folder. Raises LayoutError."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or not path.parts:
        raise LayoutError(f"{index} names {name!r}, which is outside its folder")
    found = index.parent / path
    if not found.is_file():
        raise LayoutError(f"{index} names {name}, which is not there: expected {found}")
    return found
