"""Offload folders: a raw `NAME.dat` for each tensor and an `index.json` with dtypes and shapes; and mappings that read them."""

import ctypes
import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from accelkit.contract.placement import show
from accelkit.runtime.bigmodel.failures import CheckpointFileError, OffloadError
from accelkit.runtime.bigmodel.mapping import MappedFile, has_plain_memory
from accelkit.runtime.bigmodel.safetensors_file import SafetensorsFile, load_json
from accelkit.runtime.errors import SettingError

Index = dict[str, dict[str, Any]]
INDEX_NAME = "index.json"


def offload_weight(
    weight: torch.Tensor, weight_name: str, offload_folder: str | Path, index: Index | None = None
) -> Index:
    """Write a tensor, bit for bit, to `offload_folder/weight_name.dat`; returns the index with its entry.

    The file appears under its name when it is complete. Raises OffloadError when it cannot be written.
    """
    entries: Index = {} if index is None else index
    begun, path, entries[weight_name] = _write_aside(weight, weight_name, Path(offload_folder))
    begun.replace(path)
    return entries


def _write_aside(weight: torch.Tensor, name: str, folder: Path) -> tuple[Path, Path, dict[str, Any]]:
    """Write a tensor under a name that nobody reads; returns that, the name it is to have, and its entry in the index."""
    if weight.is_meta:
        raise SettingError(f"{name} is on the meta device: it has no value to write", hint="load the model first")
    if not has_plain_memory(weight):
        kind = weight.dtype if weight.is_quantized else weight.layout
        raise SettingError(
            f"{name} is {kind}, which an offload folder cannot hold",
            hint="map it to a device; buffers stay there without offload_buffers",
        )
    path = _file_of(folder, name)
    value = weight.detach().to("cpu").resolve_conj().resolve_neg().contiguous()
    begun = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(begun, value)
    except OSError as error:
        begun.unlink(missing_ok=True)
        raise _explain(error, path, value.numel() * value.element_size()) from error
    return begun, path, {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}


def _write(path: Path, value: torch.Tensor) -> None:
    size = value.numel() * value.element_size()
    with path.open("wb", buffering=0) as file:
        if not size:
            return
        source = memoryview((ctypes.c_char * size).from_address(value.data_ptr())).cast("B")
        done = 0
        while done < size:
            done += file.write(source[done : done + (64 << 20)])


def _explain(error: OSError, path: Path, size: int) -> OffloadError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(path.parent).free
        return OffloadError(
            f"{path} needs {show(size)}, and the disk has {show(free)} left",
            hint="name an offload folder on a larger disk; a safetensors checkpoint loaded in its own dtype needs none",
        )
    return OffloadError(f"{path} cannot be written: {error.strerror or error}")


def _file_of(folder: Path, name: str) -> Path:
    if not name or "/" in name or "\\" in name or "\0" in name:
        raise SettingError(f"{name!r} cannot be the name of a file in {folder}")
    return folder / f"{name}.dat"


def load_offloaded_weight(weight_file: str | Path, weight_info: Mapping[str, Any]) -> torch.Tensor:
    """A tensor of an offload folder, as a view of its file; `weight_info` is its entry in the index.

    Raises CheckpointFileError when the file is not as long as the entry says.
    """
    path = Path(weight_file)
    _check_index({path.stem: weight_info}, path)
    dtype, shape = _dtype_of(weight_info["dtype"]), tuple(weight_info["shape"])
    size = int(torch.Size(shape).numel()) * dtype.itemsize
    try:
        there = path.stat().st_size
    except OSError as error:
        raise CheckpointFileError(f"{path} cannot be read: {error.strerror}") from error
    if there != size:
        raise CheckpointFileError(
            f"{path} has {there} bytes where the index says {list(shape)} {dtype}, which are {size}"
        )
    return MappedFile(path).tensor(0, dtype, shape) if size else torch.empty(shape, dtype=dtype)


def save_offload_index(index: Mapping[str, Any], offload_folder: str | Path) -> None:
    """Write the index, added to the one that is there; complete or not at all. An empty one is not written."""
    if index:
        begun, path = _write_index_aside(index, Path(offload_folder))
        begun.replace(path)


def _write_index_aside(index: Mapping[str, Any], folder: Path) -> tuple[Path, Path]:
    path = folder / INDEX_NAME
    begun = path.with_name(f".{INDEX_NAME}.{os.getpid()}")
    text = json.dumps({**load_offload_index(folder), **index}, indent=2)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        begun.write_text(text, encoding="utf-8")
    except OSError as error:
        begun.unlink(missing_ok=True)
        raise _explain(error, path, len(text)) from error
    return begun, path


def load_offload_index(offload_folder: str | Path) -> Index:
    """The index of a folder; empty without one. Raises CheckpointFileError for one that is damaged."""
    path = Path(offload_folder) / INDEX_NAME
    found = load_json(path) if path.exists() else {}
    _check_index(found, path)
    index: Index = found
    return index


def _check_index(index: Any, source: object) -> None:
    """Raise CheckpointFileError where an index is no table of entries that name a dtype and a shape, or a safetensors file."""
    is_table = isinstance(index, Mapping)
    bad = [f"{name}: {entry!r}" for name, entry in index.items() if not _is_entry(entry)] if is_table else [repr(index)]
    if bad:
        raise CheckpointFileError(
            f"{source}: what the index says cannot be understood: {', '.join(bad[:4])}",
            hint="it is damaged: remove the folder and offload again, or load the checkpoint anew",
        )


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, Mapping):
        return False
    if entry.get("safetensors_file"):
        return isinstance(entry["safetensors_file"], (str, Path))
    shape, dtype = entry.get("shape"), _dtype_of(entry.get("dtype"))
    is_shape = isinstance(shape, (list, tuple)) and all(type(length) is int and length >= 0 for length in shape)
    return is_shape and isinstance(dtype, torch.dtype)


def _dtype_of(name: Any) -> Any:
    """The dtype that a name in an index means; None for another word."""
    return getattr(torch, str(name).removeprefix("torch."), None)


def offload_state_dict(save_dir: str | Path, state_dict: Mapping[str, torch.Tensor]) -> None:
    """Write all tensors of a state dict to an offload folder, or none: when one fails, the folder is as it was."""
    index: Index = {}
    written: list[tuple[Path, Path]] = []
    folder = Path(save_dir)
    try:
        for name, tensor in state_dict.items():
            begun, path, index[name] = _write_aside(tensor, name, folder)
            written.append((begun, path))
        if index:
            written.append(_write_index_aside(index, folder))
    except BaseException:
        for begun, _ in written:
            begun.unlink(missing_ok=True)
        raise
    for begun, path in written:
        begun.replace(path)


class PrefixedDataset(Mapping[str, Any]):
    """The entries of a mapping whose names begin with a prefix, by the rest of their names."""

    def __init__(self, dataset: Mapping[str, Any], prefix: str) -> None:
        self.dataset = dataset
        self.prefix = prefix

    def __getitem__(self, key: str) -> Any:
        return self.dataset[f"{self.prefix}{key}"]

    def __contains__(self, key: object) -> bool:
        return f"{self.prefix}{key}" in self.dataset

    def __iter__(self) -> Iterator[str]:
        return (key.removeprefix(self.prefix) for key in self.dataset if key.startswith(self.prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class OffloadedWeightsLoader(Mapping[str, torch.Tensor]):
    """Tensors in memory, in an offload folder, or in safetensors files, by name; those of files are views of them.

    Args:
        state_dict: tensors in memory.
        save_folder: an offload folder.
        index: entries of the folder; None: those of its index.json. An entry with `safetensors_file` (and `weight_name`) points
            into such a file.
        device: where tensors are put when they are read; None: where they are.

    Raises SettingError (a ValueError) when it is given nothing to read.
    """

    def __init__(
        self,
        state_dict: Mapping[str, torch.Tensor] | None = None,
        save_folder: str | Path | None = None,
        index: Mapping[str, Any] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if state_dict is None and save_folder is None and index is None:
            raise SettingError(
                "Need either a `state_dict`, a `save_folder` or an `index` containing offloaded weights."
            )
        self.state_dict = {} if state_dict is None else state_dict
        self.save_folder = save_folder
        self.device = device
        self.index: Mapping[str, Any] = (
            load_offload_index(save_folder or ".") if index is None and save_folder else index or {}
        )
        _check_index(self.index, save_folder or "index")
        self._keys = list(dict.fromkeys([*self.state_dict, *self.index]))

    def __getitem__(self, key: str) -> torch.Tensor:
        if key in self.state_dict:
            return self._placed(self.state_dict[key])
        entry = self.index[key]
        if entry.get("safetensors_file"):
            return self._placed(_in_safetensors(entry, key))
        return self._placed(load_offloaded_weight(Path(self.save_folder or ".") / f"{key}.dat", entry))

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __contains__(self, key: object) -> bool:
        return key in self.state_dict or key in self.index

    def __len__(self) -> int:
        return len(self._keys)

    def shape_of(self, key: str) -> tuple[int, ...]:
        """The shape of a tensor, which is not read for it."""
        entry = self.index.get(key, {})
        if key not in self.state_dict and "shape" in entry:
            return tuple(entry["shape"])
        return tuple(self[key].shape)

    def _placed(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self.device is None else tensor.to(self.device)


def _in_safetensors(entry: Mapping[str, Any], key: str) -> torch.Tensor:
    """What an entry of an index points at. Raises CheckpointFileError when it is not there."""
    path, name = Path(entry["safetensors_file"]), entry.get("weight_name", key)
    try:
        found = path.stat()
    except OSError as error:
        raise CheckpointFileError(f"{path} cannot be read: {error.strerror}") from error
    file = _open_cached(path, found.st_size, found.st_mtime_ns)
    if name not in file.spans:
        raise CheckpointFileError(f"{path} holds no {name!r}, which the index names for {key}")
    value, wanted = file.view(name), _dtype_of(entry.get("dtype", file.spans[name].dtype))
    return value.to(wanted) if value.is_floating_point() else value


@lru_cache(maxsize=64)
def _open_cached(path: Path, _size: int, _changed: int) -> SafetensorsFile:
    return SafetensorsFile(path)


def extract_submodules_state_dict(
    state_dict: Mapping[str, torch.Tensor], submodule_names: list[str]
) -> dict[str, torch.Tensor]:
    """The entries that lie in some modules."""
    starts = tuple(f"{name}." for name in submodule_names)
    return {name: value for name, value in state_dict.items() if name in submodule_names or name.startswith(starts)}
