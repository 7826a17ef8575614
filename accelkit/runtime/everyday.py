"""Small functions, without effects, that scripts of this API family use."""

import functools
from collections.abc import MutableMapping
from typing import Any

import torch
from torch import nn

_TRUE = ("y", "yes", "t", "true", "on", "1")
_FALSE = ("n", "no", "f", "false", "off", "0")


def str_to_bool(value: str, to_bool: bool = False) -> int | bool:
    """1 for a text that says yes, 0 for one that says no (True and False, with `to_bool`). Raises ValueError for others."""
    text = value.lower()
    if text not in _TRUE + _FALSE:
        raise ValueError(f"invalid truth value {value!r}: must be one of {', '.join(_TRUE + _FALSE)}")
    return text in _TRUE if to_bool else int(text in _TRUE)


def get_pretty_name(obj: Any) -> str:
    """The name of a class or function; for an object, that of its class."""
    named = obj if hasattr(obj, "__qualname__") or hasattr(obj, "__name__") else type(obj)
    return str(getattr(named, "__qualname__", None) or named.__name__)


def merge_dicts(source: MutableMapping[Any, Any], destination: MutableMapping[Any, Any]) -> MutableMapping[Any, Any]:
    """Write `source` into `destination`, dict into dict, and return the latter."""
    for key, value in source.items():
        if isinstance(value, MutableMapping):
            merge_dicts(value, destination.setdefault(key, {}))
        else:
            destination[key] = value
    return destination


def convert_bytes(size: float) -> str:
    """A number of bytes as a person would say it, in powers of 1024: `1.5 MB`."""
    for unit in ("bytes", "KB", "MB", "GB", "TB"):
        if size < 1024:
            return f"{round(size, 2)} {unit}"
        size /= 1024
    return f"{round(size, 2)} PB"


def recursive_getattr(obj: Any, attr: str) -> Any:
    """The attribute at a dotted path."""
    return functools.reduce(getattr, attr.split("."), obj)


def model_has_dtensor(model: nn.Module) -> bool:
    """Whether any parameter of the model lies in pieces on several ranks."""
    if not torch.distributed.is_available():
        return False
    from torch.distributed.tensor import DTensor

    return any(isinstance(parameter, DTensor) for parameter in model.parameters())
