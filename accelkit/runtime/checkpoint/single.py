"""Single files: saving any object, once per run or per node, and loading without running code of the file's."""

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from accelkit.runtime import xla
from accelkit.runtime.checkpoint import digest, folder, objectfile, tensorfile
from accelkit.runtime.errors import SettingError
from accelkit.runtime.state import PartialState


def save(obj: Any, f: Any, save_on_each_node: bool = False, safe_serialization: bool = False) -> None:
    """Write an object to a path or file, on rank 0 (`save_on_each_node`: on the first rank of each node).

    A path is written whole or not at all. `safe_serialization` writes a dict of tensors in the safetensors format, those that share
    memory once. Raises SettingError when that format cannot hold a value.
    """
    state = PartialState()
    if state.is_local_main_process if save_on_each_node else state.is_main_process:
        write(obj, f, safe_serialization=safe_serialization)


def clean_state_dict_for_safetensors(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """A state that the safetensors format takes: of names that share a tensor the first one, with a warning, and tensors in one piece."""
    tensors = {name: value for name, value in state_dict.items() if isinstance(value, torch.Tensor)}
    aliases = tensorfile.find_aliases(tensors)
    if aliases:
        pairs = ", ".join(f"{name} (the same as {kept})" for name, kept in aliases.items())
        warnings.warn(f"left out of the state, since they share another tensor's memory: {pairs}", stacklevel=2)
    left = {name: value for name, value in state_dict.items() if name not in aliases}
    return {name: value.contiguous() if name in tensors else value for name, value in left.items()}


def write(obj: Any, f: Any, *, safe_serialization: bool = False) -> None:
    """Write an object, on every rank that calls it."""
    if not isinstance(f, (str, os.PathLike)):
        _fill(f, obj, safe_serialization)
        return
    path = Path(f)
    staged = path.with_name(f".{path.name}.{folder.new_token()}")
    try:
        digest.write_file(staged, digest.Inline(), lambda file: _fill(file, obj, safe_serialization))
        staged.replace(path)
        folder.sync(path.parent)
    except BaseException:
        staged.unlink(missing_ok=True)
        raise


def _fill(file: Any, obj: Any, safe: bool) -> None:
    if not safe:
        torch.save(xla.on_cpu(obj), file)
        return
    unfit = [name for name, value in obj.items() if not tensorfile.fits(value)]
    if unfit:
        raise SettingError(
            f"save: {unfit[0]} cannot be held by the safetensors format: {type(obj[unfit[0]]).__name__}",
            hint="leave safe_serialization out, or save it apart",
        )
    tensorfile.write(file, obj, tensorfile.find_aliases(obj))


def load(f: Any, map_location: Any = None, **kwargs: Any) -> Any:
    """`torch.load` that makes only tensors, numbers (numpy's too), texts and containers of them; `weights_only=False` lifts that."""
    with objectfile.numpy_is_safe():
        return torch.load(f, map_location=map_location, **{"weights_only": True, **kwargs})
