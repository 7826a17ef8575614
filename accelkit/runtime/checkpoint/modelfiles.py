"""A model's weights as files for others to read: one safetensors file, or shards and an index that says where each tensor is."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from accelkit.runtime.bigmodel.bytesize import convert_file_size_to_int
from accelkit.runtime.checkpoint import digest, folder, memory, tensorfile
from accelkit.runtime.checkpoint.parts import ObjectPart, Part, TensorPart
from accelkit.runtime.errors import SettingError, UnsupportedError

_OURS: Final = re.compile(
    r"(model(-\d{5}-of-\d{5})?\.safetensors|pytorch_model(-\d{5}-of-\d{5})?\.bin)(\.index\.json)?"
)
_INDEX: Final = ".index.json"


def parse_size(size: int | str) -> int:
    """Bytes: a number, or a text like "10GB" (10**10), "2GiB" (2 * 2**30) or "2gb", bytes all. Raises SettingError for anything else."""
    text = str(size).strip().upper().replace("IB", "iB")
    try:
        found = convert_file_size_to_int(f"{text}B" if text[-1:].isdigit() else text)
    except SettingError:
        found = 0
    if found < 1:
        raise SettingError(f"max_shard_size={size!r}: must be a number of bytes, or a text like '10GB' or '500MiB'")
    return found


@dataclass(frozen=True)
class Shards:
    """Which tensors go into which file."""

    files: dict[str, list[str]]
    """File name -> the names of the tensors in it."""
    total: int
    """Bytes of all tensors."""

    @property
    def weight_map(self) -> dict[str, str]:
        """The file of each tensor."""
        return {name: file for file, names in self.files.items() for name in names}


def split(sizes: Mapping[str, int], limit: int, stem: str, suffix: str) -> Shards:
    """Tensors in their order, cut into files of at most `limit` bytes; a larger tensor has a file of its own.

    One file is `model.safetensors`, the second of three `model-00002-of-00003.safetensors`.
    """
    groups: list[list[str]] = [[]]
    room = limit
    for name, size in sizes.items():
        if size > room and groups[-1]:
            groups.append([])
            room = limit
        groups[-1].append(name)
        room -= size
    count = len(groups)
    if count == 1:
        return Shards({f"{stem}{suffix}": groups[0]}, sum(sizes.values()))
    files = {f"{stem}-{number:05d}-of-{count:05d}{suffix}": names for number, names in enumerate(groups, 1)}
    return Shards(files, sum(sizes.values()))


def save(state: Mapping[str, Any], target: Path, *, max_shard_size: int | str, safe: bool, pool: Executor) -> None:
    """Write a model's state to a folder, over an earlier one: other files of an earlier save go, files of anything else stay.

    Names that share one tensor are stored once. While files are exchanged there is no index, so nobody reads a mixture.
    """
    if target.is_file():
        raise SettingError(f"save_model: {target} is a file", hint="give the folder to write model.safetensors to")
    limit = parse_size(max_shard_size)
    for name, value in state.items():
        if isinstance(value, torch.Tensor) and value.is_meta:
            raise UnsupportedError(f"save_model: {name} is on the meta device: it has no values")
        if safe and not tensorfile.fits(value):
            raise UnsupportedError(
                f"save_model: {name} is {_describe(value)}, which the safetensors format cannot hold",
                hint="save_model(..., safe_serialization=False) writes torch's own format",
            )
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    dense = {name: value for name, value in tensors.items() if value.layout is torch.strided}
    aliases = tensorfile.find_aliases(dense)
    sizes = {name: memory.size_of(value) for name, value in tensors.items() if name not in aliases}
    shards = split(sizes, limit, *(("model", ".safetensors") if safe else ("pytorch_model", ".bin")))
    _publish(_parts(state, shards, aliases, safe=safe), _index(shards, aliases), target, pool)


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a {type(value).__name__} of {value.dtype} ({value.layout})"
    return f"an object of type {type(value).__name__}"


def _parts(state: Mapping[str, Any], shards: Shards, aliases: Mapping[str, str], *, safe: bool) -> list[Part]:
    parts: list[Part] = []
    for file, names in shards.files.items():
        shared = {name: kept for name, kept in aliases.items() if kept in names}
        content = {name: state[name] for name in [*names, *shared]}
        parts.append(TensorPart(file, content, shared) if safe else ObjectPart(file, content))
    if not safe:
        others = {name: value for name, value in state.items() if not isinstance(value, torch.Tensor)}
        last = parts[-1]
        assert isinstance(last, ObjectPart)
        parts[-1] = ObjectPart(last.name, {**last.value, **others})
    return parts


def _index(shards: Shards, aliases: Mapping[str, str]) -> tuple[str, str] | None:
    """Name and text of the index; None for a single file."""
    if len(shards.files) == 1:
        return None
    first = next(iter(shards.files))
    name = re.sub(r"-\d{5}-of-\d{5}", "", first) + _INDEX
    where = shards.weight_map
    where |= {alias: where[kept] for alias, kept in aliases.items() if first.endswith(".bin")}
    body = {"metadata": {"total_size": shards.total}, "weight_map": dict(sorted(where.items()))}
    return name, json.dumps(body, indent=2) + "\n"


def _publish(parts: Sequence[Part], index: tuple[str, str] | None, target: Path, pool: Executor) -> None:
    """Write beside the old files first, then exchange them: index away, files over, index last."""
    target.mkdir(parents=True, exist_ok=True)
    folder.sweep(target)
    staged = target / f".saving-{folder.new_token()}"
    with folder.hold(staged):
        for part in parts:
            digest.write_file(staged / part.name, pool, part.write)
        if index is not None:
            text = index[1].encode()
            digest.write_file(staged / index[0], pool, lambda file: file.write(text))
        new = [part.name for part in parts]
        stale = [path for path in target.iterdir() if _OURS.fullmatch(path.name) and path.name not in new]
        for path in sorted(stale, key=lambda path: not path.name.endswith(_INDEX)):
            path.unlink()
        for name in [*new, *([index[0]] if index else [])]:
            os.replace(staged / name, target / name)
        folder.sync(target)
