"""Checkpoints of all forms as one thing: a table of tensors that have not been read yet.

A form is a function that opens a path; `open_checkpoint` finds the one that fits. Everything that can be checked without
reading tensors is checked here: that files exist, lie in the folder, and hold what indexes and headers say.
"""

import pickle
import struct
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from accelkit.contract.safetensors_layout import INDEX, LFS, shard, weight_map
from accelkit.runtime.bigmodel.failures import CheckpointFileError
from accelkit.runtime.bigmodel.mapping import MappedFile, region_of, remapped
from accelkit.runtime.bigmodel.safetensors_file import SafetensorsFile, checking

_TORCH: Final = (".bin", ".pt", ".pth")
_DAMAGE: Final = (
    *(OSError, RuntimeError, ValueError, EOFError, LookupError, TypeError, AttributeError),
    *(pickle.UnpicklingError, struct.error),
)
"""What reading a damaged pickle may raise."""


@dataclass(frozen=True)
class Stored:
    """A tensor in a checkpoint."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    file: Path
    is_mapped: bool
    """Whether `read` gives a view of the file, which costs nothing; otherwise memory of its own."""
    read: Callable[[], torch.Tensor]
    is_sound: bool = True
    """Whether all that reading could find wrong was checked when it was opened."""

    @property
    def size(self) -> int:
        """Bytes."""
        return int(torch.Size(self.shape).numel()) * self.dtype.itemsize


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a checkpoint by name."""

    path: Path
    tensors: Mapping[str, Stored]


def open_checkpoint(path: str | Path, *, copy: bool = False) -> Checkpoint:
    """Open a checkpoint: a .safetensors file, a .bin of torch.save, an .index.json of either, or a folder.

    A folder holds one of these, or is what torch.distributed.checkpoint writes. Where a folder holds the same model as
    safetensors and as .bin, safetensors are taken. With `copy`, tensors are read into memory of their own.

    Raises CheckpointFileError (a ValueError) for files that are missing, damaged, ambiguous, or outside the folder.
    """
    place = Path(path).expanduser()
    if place.is_dir():
        place = _find_in(place)
    if not place.exists():
        raise CheckpointFileError(
            f"{path}: there is no such checkpoint",
            hint="give a .safetensors or .bin file, an .index.json, or a folder that holds one",
        )
    if place.is_dir():
        from accelkit.runtime.bigmodel.dcp import open_dcp

        return Checkpoint(place, open_dcp(place))
    if place.name.endswith(INDEX):
        return Checkpoint(place, _open_index(place, copy))
    return Checkpoint(place, open_file(place, copy=copy))


def _find_in(folder: Path) -> Path:
    """The file of a folder that is its checkpoint, or the folder itself when torch.distributed.checkpoint wrote it."""
    names = {entry.name for entry in folder.iterdir()}
    if ".metadata" in names:
        return folder
    for suffixes in ((".safetensors",), _TORCH):
        indexes = [name for name in names if name.endswith(tuple(suffix + INDEX for suffix in suffixes))]
        sharded = _named_by(folder, indexes)
        single = [name for name in names if name.endswith(suffixes) and name not in sharded]
        usual = [name for name in ("model.safetensors", "pytorch_model.bin") if name in single]
        found: list[str] = sorted([*indexes, *(usual or single)])
        if len(found) == 1:
            return folder / found[0]
        if found:
            raise CheckpointFileError(
                f"{folder} holds more than one checkpoint: {', '.join(found)}", hint="give the file that is meant"
            )
    plain = [name for name in names if name.endswith(INDEX)]
    if len(plain) == 1:
        return folder / plain[0]
    raise CheckpointFileError(
        f"{folder} holds no checkpoint",
        hint="expected model.safetensors, pytorch_model.bin, one *.index.json, or what torch.distributed.checkpoint writes",
    )


def _named_by(folder: Path, indexes: Iterable[str]) -> set[str]:
    return {str(file) for name in indexes for file in _table(folder / name).values()}


def open_file(path: Path, *, copy: bool) -> dict[str, Stored]:
    """The tensors of one file."""
    if path.suffix == ".safetensors":
        return _open_safetensors(path, copy)
    if path.suffix in _TORCH:
        return _open_torch(path, copy)
    raise CheckpointFileError(
        f"{path} is no checkpoint", hint="known are .safetensors, .bin, .pt, .pth and .index.json"
    )


def _open_safetensors(path: Path, copy: bool) -> dict[str, Stored]:
    file = SafetensorsFile(path)

    def stored(name: str) -> Stored:
        span = file.spans[name]
        read = file.copy if copy else file.view
        return Stored(span.dtype, span.shape, path, not copy and file.is_mapped(name), lambda: read(name))

    return {name: stored(name) for name in file.spans}


def _open_torch(path: Path, copy: bool) -> dict[str, Stored]:
    """A dict of tensors that torch.save wrote: mapped where the format allows it, and never run as code."""
    with path.open("rb") as file:
        if file.read(len(LFS)) == LFS:
            raise CheckpointFileError(f"{path} is a pointer of Git LFS: fetch the file itself (git lfs pull)")
    mapped = not copy and zipfile.is_zipfile(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except _DAMAGE as error:
        raise CheckpointFileError(
            f"{path} cannot be read as tensors alone: {error}",
            hint="it is damaged, or holds objects, which could run code; save a state dict of tensors",
        ) from error
    if not isinstance(content, Mapping) or not content:
        raise CheckpointFileError(f"{path} holds no dict of tensors but {type(content).__name__}")
    others = [str(name) for name, value in content.items() if not isinstance(value, torch.Tensor)]
    if others:
        raise CheckpointFileError(f"{path} holds more than tensors: {', '.join(others[:8])}")
    whole = MappedFile(path) if mapped else None

    def stored(tensor: torch.Tensor) -> Stored:
        value = tensor.detach() if whole is None else remapped(tensor.detach(), whole)
        return Stored(value.dtype, tuple(value.shape), path, region_of(value) is not None, lambda: value)

    return {str(name): stored(tensor) for name, tensor in content.items()}


def _open_index(index: Path, copy: bool) -> dict[str, Stored]:
    """The tensors that an index spreads over files. All files are checked before any is used."""
    table = _table(index)
    shards: dict[str, dict[str, Stored]] = {}
    for name in dict.fromkeys(table.values()):
        with checking():
            file = shard(index, name)
        shards[name] = open_file(file, copy=copy)
    lost = [f"{tensor} (in {name})" for tensor, name in table.items() if tensor not in shards[name]]
    if lost:
        raise CheckpointFileError(f"{index} names tensors that are not where it says: {', '.join(lost)}")
    holders: dict[str, str] = {}
    for name, tensors in shards.items():
        for tensor in tensors:
            if holders.setdefault(tensor, table.get(tensor, name)) != name:
                raise CheckpointFileError(f"{index}: {tensor} is in {name} and in {holders[tensor]}")
    return {tensor: shards[name][tensor] for tensor, name in holders.items()}


def _table(index: Path) -> dict[str, str]:
    with checking():
        return weight_map(index)
