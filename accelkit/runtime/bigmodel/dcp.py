"""Folders that torch.distributed.checkpoint wrote, read as a table of tensors by one process, whatever the ranks that wrote them."""

import pickle
from pathlib import Path
from typing import Any

import torch

from accelkit.runtime.bigmodel.checkpoint import Stored
from accelkit.runtime.bigmodel.failures import CheckpointFileError


def open_dcp(folder: Path) -> dict[str, Stored]:
    """The tensors of the model in the folder: those under the key "model" if there is one, else all. They are read on use."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    try:
        metadata = FileSystemReader(folder).read_metadata()
    except (OSError, ValueError, EOFError, LookupError, AttributeError, pickle.UnpicklingError) as error:
        raise CheckpointFileError(f"{folder}: .metadata cannot be read: {error}") from error
    paths: dict[str, tuple[Any, ...]] = metadata.planner_data or {}
    tensors = {
        key: entry for key, entry in metadata.state_dict_metadata.items() if isinstance(entry, TensorStorageMetadata)
    }
    names = {key: _path(paths, key) for key in tensors}
    in_model = {key for key, path in names.items() if len(path) > 1 and path[0] == "model"}
    chosen = {key: ".".join(map(str, path[1:] if in_model else path)) for key, path in names.items()}
    return {
        name: Stored(
            tensors[key].properties.dtype,
            tuple(tensors[key].size),
            folder,
            is_mapped=False,
            read=_reader(folder, key, tensors[key]),
        )
        for key, name in chosen.items()
        if not in_model or key in in_model
    }


def _path(paths: dict[str, tuple[Any, ...]], key: str) -> tuple[Any, ...]:
    return tuple(paths.get(key) or (key,))


def _reader(folder: Path, key: str, entry: Any) -> Any:
    def read() -> torch.Tensor:
        from torch.distributed.checkpoint.filesystem import FileSystemReader
        from torch.distributed.checkpoint.state_dict_loader import load

        made = torch.empty(entry.size, dtype=entry.properties.dtype)
        load({key: made}, storage_reader=FileSystemReader(folder), no_dist=True)
        return made

    return read
