"""A sharded checkpoint as one model for others to read: `kit merge-weights`, and a function of the same effect.

python -m accelkit.runtime.checkpoint.merging FOLDER OUTPUT [--index N] [--max-shard-size SIZE] [--bin] [--remove]
"""

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

import torch

from accelkit.runtime.checkpoint import digest, folder, manifest, modelfiles, names
from accelkit.runtime.errors import AccelkitError, CheckpointError, SettingError

_FULL = "pytorch_model_fsdp.bin"
_LOCAL = "pytorch_model_fsdp_rank*.bin"


def merge_fsdp_weights(
    checkpoint_dir: Any,
    output_path: Any,
    safe_serialization: bool = True,
    remove_checkpoint_dir: bool = False,
    *,
    index: int = 0,
    max_shard_size: int | str = "10GB",
) -> Path:
    """Write the weights in a sharded checkpoint as `model.safetensors` (or shards and their index); one process, no process group.

    Args:
        checkpoint_dir: what `save_state` wrote, a folder of torch.distributed.checkpoint (its tensors under "model", if there is such a
            key), or one that holds `pytorch_model_fsdp.bin`.
        output_path: the folder to write to; an earlier model there is replaced.
        safe_serialization: False writes `pytorch_model.bin` and so on.
        remove_checkpoint_dir: remove `checkpoint_dir` when the model is complete.
        index: which model of a checkpoint that holds several.
        max_shard_size: of one file.

    Returns the folder. Raises SettingError where there is no such checkpoint, CheckpointError where it is damaged.
    """
    source, target = Path(checkpoint_dir).expanduser(), Path(output_path).expanduser()
    if not source.is_dir():
        raise SettingError(f"merge-weights: {source} is not a folder")
    if remove_checkpoint_dir and target.resolve().is_relative_to(source.resolve()):
        raise SettingError(f"merge-weights: {target} lies in {source}, which would be removed", hint="write elsewhere")
    state = _read(source, index)
    with digest.threads() as pool:
        modelfiles.save(state, target, max_shard_size=max_shard_size, safe=safe_serialization, pool=pool)
    if remove_checkpoint_dir:
        shutil.rmtree(source)
    return target


def _read(source: Path, index: int) -> dict[str, Any]:
    found = folder.open_checkpoint(source) if (source / manifest.NAME).is_file() else folder.Opened(source, _NONE)
    divided = found.path(f"{names.shards_of_model(index)}/.metadata").parent
    for candidate in (divided, source):
        if (candidate / ".metadata").is_file():
            return _read_shards(candidate)
    full = source / (_FULL if index == 0 else _FULL.replace(".bin", f"_{index}.bin"))
    if full.is_file():
        state: dict[str, Any] = torch.load(full, map_location="cpu", weights_only=True, mmap=True)
        return state
    if any(source.glob(_LOCAL)):
        raise SettingError(
            f"merge-weights: {source} holds flat parameters of FSDP1's LOCAL_STATE_DICT, whose shapes only that run knows",
            hint="load it where it was saved, and save it with SHARDED_STATE_DICT or FULL_STATE_DICT",
        )
    there = ", ".join(sorted(path.name for path in source.iterdir())[:6]) or "nothing"
    raise SettingError(
        f"merge-weights: {source} holds no sharded model {index}: there is {there}",
        hint=f"name the folder that holds {names.shards_of_model(index)}, or .metadata",
    )


_NONE = manifest.Manifest(world_size=1, strategy="", iteration=0, counts={})


def _read_shards(source: Path) -> dict[str, Any]:
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    from accelkit.runtime.checkpoint.shards import read_folder

    try:
        table = FileSystemReader(source).read_metadata()
    except (OSError, ValueError, EOFError, LookupError, AttributeError) as error:
        raise CheckpointError(f"{source}/.metadata: cannot be read ({error})") from error
    tensors = {
        key: torch.empty(entry.size, dtype=entry.properties.dtype)
        for key, entry in table.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    paths = {key: tuple((table.planner_data or {}).get(key) or (key,)) for key in tensors}
    if any(path[0] == "model" and len(path) > 1 for path in paths.values()):
        paths = {key: path[1:] for key, path in paths.items() if path[0] == "model"}
    chosen = {key: tensors[key] for key in paths}
    read_folder(source, chosen)
    return {".".join(map(str, path)): chosen[key] for key, path in paths.items()}


def main() -> int:
    """The command line. Returns the exit code: 2 for what cannot be done."""
    parser = argparse.ArgumentParser(prog="kit merge-weights")
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--max-shard-size", default="10GB")
    parser.add_argument("--bin", action="store_true")
    parser.add_argument("--remove", action="store_true")
    given = parser.parse_args()
    try:
        merge_fsdp_weights(
            given.folder,
            given.output,
            not given.bin,
            given.remove,
            index=given.index,
            max_shard_size=given.max_shard_size,
        )
    except AccelkitError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
