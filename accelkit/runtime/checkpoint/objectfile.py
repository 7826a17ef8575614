"""Objects on disk in torch's own format. Loading runs no code of the file's unless the caller says so."""

import pickle
import re
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, Any, Final, cast

import torch
from torch.utils.serialization import config

from accelkit.runtime import xla
from accelkit.runtime.checkpoint.digest import DigestingFile
from accelkit.runtime.errors import CheckpointError

_REFUSED: Final = re.compile(r"GLOBAL ([\w.]+)")
_NUMPY_TYPES: Final = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
)  # fmt: skip


def write(file: DigestingFile, value: Any) -> None:
    """Write an object with `torch.save`, without the checksums of its own: what is written is digested anyway."""
    with config.patch("save.compute_crc32", False):  # type: ignore[attr-defined]
        torch.save(xla.on_cpu(value), cast("IO[bytes]", file))  # write and flush are all that it needs


def read(path: Path, load_kwargs: Mapping[str, Any] | None = None) -> Any:
    """An object that `torch.save` wrote: its tensors on the CPU, and views of the file.

    `load_kwargs` go to `torch.load`. Raises CheckpointError, with the name of the class, for a file that holds more than tensors,
    numbers, texts and containers of them, unless `load_kwargs` says `weights_only=False`.
    """
    arguments = {"map_location": "cpu", "mmap": True, "weights_only": True, **(load_kwargs or {})}
    try:
        with numpy_is_safe():
            return torch.load(path, **arguments)
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, AttributeError, ModuleNotFoundError) as error:
        raise CheckpointError(f"{path}: cannot be loaded: {_reason(error)}", hint=_hint(error)) from error


def _reason(error: Exception) -> str:
    refused = _REFUSED.search(str(error))
    if refused:
        return f"it holds an object of {refused[1]}, and making one could run any code"
    return str(error).partition("\n")[0] or type(error).__name__


def _hint(error: Exception) -> str:
    refused = _REFUSED.search(str(error))
    if not refused:
        return "the file is damaged, or was written by something else"
    name = refused[1].rpartition(".")[2]
    return (
        f"if you trust the file: torch.serialization.add_safe_globals([{name}]), or "
        'load_state(..., load_kwargs={"weights_only": False}); better: a state_dict of tensors, numbers and texts'
    )


def numpy_is_safe() -> AbstractContextManager[Any]:
    """A block in which arrays and numbers of numpy load, too; nothing where numpy was never imported."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        return nullcontext()
    core = getattr(numpy, "_core", None) or numpy.core
    kinds = {type(numpy.dtype(name)) for name in _NUMPY_TYPES}
    multiarray = core.multiarray
    names = [(multiarray._reconstruct, "numpy.core.multiarray._reconstruct"), multiarray._reconstruct]  # noqa: SLF001
    names += [(multiarray.scalar, "numpy.core.multiarray.scalar"), multiarray.scalar]
    return torch.serialization.safe_globals([*names, numpy.ndarray, numpy.dtype, *kinds])
