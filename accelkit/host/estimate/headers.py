"""A checkpoint's anatomy from the headers of its safetensors files: a few kilobytes of each are read."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from accelkit.contract import anatomy, safetensors_layout
from accelkit.contract.anatomy import Anatomy
from accelkit.contract.safetensors_layout import INDEX, TORCH_NAMES, Entry, LayoutError
from accelkit.host.errors import UsageError

SUFFIX: Final = ".safetensors"


def find(path: Path) -> Path | None:
    """The safetensors file, or the index of several, that a path stands for; None where there is neither.

    Raises UsageError where a folder holds several models.
    """
    if path.is_file():
        return path if path.name.endswith((SUFFIX, SUFFIX + INDEX)) else None
    if not path.is_dir():
        return None
    names = sorted(entry.name for entry in path.iterdir())
    indexes = [name for name in names if name.endswith(SUFFIX + INDEX)]
    single = [name for name in names if name.endswith(SUFFIX)] if not indexes else []
    found = ["model.safetensors"] if "model.safetensors" in single else [*indexes, *single]
    if len(found) > 1:
        raise UsageError(f"{path} holds several models: {', '.join(found)}", hint="name the file that is meant")
    return path / found[0] if found else None


def read(file: Path) -> Anatomy:
    """The anatomy of a checkpoint. Raises UsageError for a file that is damaged or names what it must not."""
    return _anatomy(file, entries(file).items())


def entries(file: Path) -> dict[str, Entry]:
    """Its tensors by name. Raises UsageError for a file that is damaged or names what it must not."""
    try:
        if not file.name.endswith(INDEX):
            return dict(safetensors_layout.read(file).tensors)
        table = safetensors_layout.weight_map(file)
        shards = {name: safetensors_layout.read(safetensors_layout.shard(file, name)) for name in set(table.values())}
    except LayoutError as error:
        raise UsageError(str(error)) from error
    lost = [f"{tensor} (in {name})" for tensor, name in table.items() if tensor not in shards[name].tensors]
    if lost:
        raise UsageError(f"{file} names tensors that are not where it says: {', '.join(lost)}")
    return {tensor: shards[name].tensors[tensor] for tensor, name in table.items()}


def _anatomy(file: Path, entries: Iterable[tuple[str, Entry]]) -> Anatomy:
    tensors = {
        name: (TORCH_NAMES[entry.dtype], entry.size // safetensors_layout.WIDTHS[entry.dtype], entry.size)
        for name, entry in entries
    }
    if not tensors:
        raise UsageError(f"{file} holds no tensors")
    return anatomy.from_names(f"{len(tensors)} tensors of {file.name}", tensors)
