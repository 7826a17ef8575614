"""Folders that torch.distributed.checkpoint wrote, read as a table of tensors by one process, whatever the ranks that wrote them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch

from accelkit.runtime.bigmodel.checkpoint import Stored
from accelkit.runtime.bigmodel.failures import CheckpointFileError

_NAME = ".metadata"


@dataclass(frozen=True)
class _Place:
    """Where a part of a tensor lies."""

    file: str
    end: int
    """In bytes from the file's start."""

    @classmethod
    def of(cls, entry: Any) -> "_Place":
        return cls(str(entry.relative_path), int(entry.offset) + int(entry.length))


def open_dcp(folder: Path) -> dict[str, Stored]:
    """The tensors of the model in the folder: those under the key "model" if there is one, else all. They are read on use.

    Raises CheckpointFileError for a table that cannot be understood, and for files that are missing or shorter than it says.
    """
    try:
        return _open(folder)
    except CheckpointFileError:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise CheckpointFileError(
            f"{folder / _NAME} cannot be understood: {type(error).__name__}: {error}",
            hint="it is damaged, or was not written by torch.distributed.checkpoint: save the checkpoint again",
        ) from error


def _open(folder: Path) -> dict[str, Stored]:
    paths, tensors, places = _table(folder)
    names = {key: tuple(paths.get(key) or (key,)) for key in tensors}
    in_model = {key for key, path in names.items() if len(path) > 1 and path[0] == "model"}
    chosen = {key: ".".join(map(str, path[1:] if in_model else path)) for key, path in names.items()}
    wanted = {key: name for key, name in chosen.items() if not in_model or key in in_model}
    _check_files(folder, (place for key in wanted for place in places[key]))
    return {
        name: Stored(
            tensors[key].properties.dtype,
            tuple(tensors[key].size),
            folder,
            is_mapped=False,
            read=_reader(folder, key, tensors[key], sorted({place.file for place in places[key]})),
            is_sound=False,
        )
        for key, name in wanted.items()
    }


def _table(folder: Path) -> tuple[Mapping[str, Any], dict[str, Any], dict[str, list["_Place"]]]:
    """What .metadata says: the path of each key in the state, its tensors, and where the parts of each tensor lie."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata

    metadata = FileSystemReader(folder).read_metadata()
    paths = {key: tuple(path) for key, path in dict(metadata.planner_data or {}).items()}
    stored = dict(metadata.storage_data)
    tensors = {
        str(key): entry
        for key, entry in metadata.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    places = {}
    for key, entry in tensors.items():
        chunks: dict[tuple[int, ...], int] = {tuple(chunk.offsets): prod(chunk.sizes) for chunk in entry.chunks}
        dtype: Any = entry.properties.dtype
        is_whole = sum(chunks.values()) == prod(entry.size) and min(entry.size, default=0) >= 0
        if not is_whole or not isinstance(dtype, torch.dtype):
            raise CheckpointFileError(
                f"{folder / _NAME}: the parts of {key} do not make it up: save the checkpoint again"
            )
        places[key] = [_Place.of(stored[MetadataIndex(key, offset)]) for offset in chunks]
    return paths, tensors, places


def _check_files(folder: Path, places: Iterable[_Place]) -> None:
    """Raise for a file that is not there, ends before what it is to hold, or lies elsewhere."""
    ends: dict[str, int] = {}
    for place in places:
        ends[place.file] = max(ends.get(place.file, 0), place.end)
    for name, end in ends.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise CheckpointFileError(f"{folder / _NAME} names {name}, which is outside its folder")
        if not path.is_file():
            raise CheckpointFileError(f"{folder / _NAME} names {name}, which is not there")
        size = path.stat().st_size
        if size < end:
            raise CheckpointFileError(f"{path} is cut short: {size} of {end} bytes are there")


def _reader(folder: Path, key: str, entry: Any, files: list[str]) -> Any:
    def read() -> torch.Tensor:
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.filesystem import FileSystemReader
        from torch.distributed.checkpoint.state_dict_loader import load

        made = torch.empty(entry.size, dtype=entry.properties.dtype)
        try:
            load({key: made}, storage_reader=FileSystemReader(folder), no_dist=True)
        except CheckpointException as error:
            reasons = [str(failure) for failure, _ in error.failures.values()]
            raise CheckpointFileError(
                f"{key} cannot be read from {', '.join(str(folder / file) for file in files)}: {'; '.join(reasons)}",
                hint="the file is damaged: save the checkpoint again",
            ) from error
        return made

    return read
