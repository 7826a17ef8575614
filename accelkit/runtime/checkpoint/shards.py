"""Sharded tensors in checkpoints: a folder that all ranks write their parts to, read again by any number of ranks.

The folders are those of torch.distributed.checkpoint. Each rank reads what it holds, and exchanges nothing for it. A checkpoint that holds
tensors whole is read by parts as well.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from accelkit.runtime import sharded
from accelkit.runtime.checkpoint import names, tensorfile
from accelkit.runtime.checkpoint.digest import DigestingFile
from accelkit.runtime.checkpoint.folder import Opened
from accelkit.runtime.checkpoint.parts import Keep, Part, Subjects
from accelkit.runtime.checkpoint.tensorfile import Slot
from accelkit.runtime.errors import CheckpointError

_META = ".metadata"


@dataclass(frozen=True)
class Written:
    """A file that lies in the checkpoint already."""

    name: str

    def write(self, file: DigestingFile) -> None:
        """Nothing is left to write."""

    def snapshot(self, keep: Keep) -> "Written":
        """The same: it is on the disk."""
        return self


@dataclass
class Held:
    """Tensors to be written by all ranks, by the folder they go to."""

    folders: dict[str, dict[str, Any]] = field(default_factory=dict)

    def write(self, path: Path, rank: int) -> list[Part]:
        """Write them; all ranks call it. Returns this rank's files."""
        from torch.distributed.checkpoint.filesystem import FileSystemWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        for name, tensors in self.folders.items():
            save(tensors, storage_writer=FileSystemWriter(path / name, thread_count=1))
        return [
            Written(file.relative_to(path).as_posix())
            for name in self.folders
            for file in sorted((path / name).glob(f"__{rank}_*"))
        ]


def states(subjects: Subjects, *, keep: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The states of models and optimizers: whole on ranks that `keep` them, or as this rank holds them where ranks save their parts."""
    strategy = subjects.strategy
    if strategy.saves_shards:
        return (
            [strategy.live_state(model) for model in subjects.models],
            [strategy.live_optimizer_state(optimizer) for optimizer in subjects.optimizers],
        )
    return (
        [strategy.model_state(model, keep=keep) for model in subjects.models],
        [strategy.optimizer_state(optimizer, keep=keep) for optimizer in subjects.optimizers],
    )


def take(weights: Sequence[dict[str, Any]], optimizers: list[dict[str, Any]]) -> Held:
    """Take what is to be written in parts out of states: all tensors of a sharded model, the sharded ones of an optimizer."""
    held = Held()
    for index, state in enumerate(weights):
        if any(map(sharded.is_sharded, state.values())):
            tensors = {name: state.pop(name) for name in list(state) if isinstance(state[name], torch.Tensor)}
            held.folders[names.shards_of_model(index)] = {"model": tensors}
    for index, state in enumerate(optimizers):
        found = {_key(*place): value for *place, value in _tensors(state) if sharded.is_sharded(value)}
        if found:
            held.folders[names.shards_of_optimizer(index)] = found
            rest = {
                key: {name: value for name, value in values.items() if not sharded.is_sharded(value)}
                for key, values in state["state"].items()
            }
            optimizers[index] = {**state, "state": rest}
    return held


def _tensors(state: Mapping[str, Any]) -> Iterator[tuple[Any, str, Any]]:
    for key, values in state.get("state", {}).items():
        for name, value in values.items() if isinstance(values, dict) else ():
            yield key, name, value


def _key(parameter: Any, name: str) -> str:
    return f"state.{parameter}.{name}"


# ---- reading --------------------------------------------------------------------------------------------------------


def layout(found: Opened, folder: str) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """Types and shapes of the tensors in a folder of shards. Raises CheckpointError when its table cannot be read."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    try:
        table = FileSystemReader(_where(found, folder)).read_metadata().state_dict_metadata
    except (OSError, ValueError, EOFError, LookupError, AttributeError) as error:
        raise CheckpointError(f"{found.path(folder)}/{_META}: cannot be read ({error})") from error
    return {
        name: (entry.properties.dtype, tuple(entry.size))
        for name, entry in table.items()
        if isinstance(entry, TensorStorageMetadata)
    }


def _where(found: Opened, folder: str) -> Path:
    return found.path(f"{folder}/{_META}").parent


def read(found: Opened, folder: str, tensors: dict[str, Any]) -> None:
    """Fill tensors, whole ones and parts, from a folder of shards; each rank reads for itself."""
    read_folder(_where(found, folder), tensors)


def read_folder(path: Path, tensors: dict[str, Any]) -> None:
    """The same from a folder anywhere."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    if not tensors:
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # that each rank reads for itself is meant
        load(tensors, storage_reader=FileSystemReader(path), no_dist=True)


def read_optimizer(found: Opened, index: int, saved: Mapping[str, Any], optimizer: Any) -> dict[str, Any]:
    """The state of an optimizer with its sharded tensors put back, laid out as its parameters are now."""
    folder = names.shards_of_optimizer(index)
    theirs = [key for group in saved["param_groups"] for key in group["params"]]
    mine = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    parameters = dict(zip(theirs, mine, strict=False))
    tensors: dict[str, Any] = {}
    state = {key: dict(values) for key, values in saved["state"].items()}
    for name, (dtype, shape) in layout(found, folder).items():
        _, key, field_name = name.split(".", 2)
        parameter = parameters.get(int(key))
        fits = parameter is not None and sharded.is_sharded(parameter) and tuple(parameter.shape) == shape
        tensors[name] = sharded.empty_as(parameter, dtype) if fits else torch.empty(shape, dtype=dtype)
        state.setdefault(int(key), {})[field_name] = tensors[name]
    read(found, folder, tensors)
    return {**saved, "state": state}


def read_into(path: Path, slots: Iterable[tuple[Slot, Any]]) -> None:
    """Fill tensors from a safetensors file; of those that are divided only the rows that this rank has a part of are read."""
    whole: list[tuple[Slot, Any]] = []
    parts: list[tuple[Slot, Any]] = []
    for slot, tensor in slots:
        (parts if sharded.is_sharded(tensor) else whole).append((slot, tensor))
    tensorfile.read_into(path, whole)
    for slot, tensor in parts:
        _read_part(path, slot, tensor)


def _read_part(path: Path, slot: Slot, tensor: Any) -> None:
    target, box = sharded.local(tensor.detach()), sharded.box(tensor)
    if not target.numel():
        return
    if not box.lengths or box.lengths[1:] == slot.shape[1:]:
        rows = target
    else:
        rows = torch.empty((box.lengths[0], *slot.shape[1:]), dtype=slot.dtype)
    skipped = box.offsets[0] * (rows.numel() // rows.shape[0]) * slot.dtype.itemsize if box.lengths else 0
    tensorfile.read_into(path, [(Slot(slot.dtype, tuple(rows.shape), slot.start + skipped), rows)])
    if rows is not target:
        inner = sharded.Box((0, *box.offsets[1:]), box.lengths)
        target.copy_(inner.cut(rows))
