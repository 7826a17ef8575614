"""What a script hands to trackers, made plain: numbers and texts for a step, a configuration of any depth for a run."""

import argparse
import dataclasses
import datetime as dt
import enum
import json
import pathlib
import types
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import torch

from accelkit.runtime.errors import SettingError

_AS_TEXT = (pathlib.PurePath, torch.dtype, torch.device, dt.date, dt.time, dt.timedelta)
_BY_NAME = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_LOOKS_LIKE_A_NUMBER = ("item", "size")


def number(value: Any) -> Any:
    """A tensor or array of one element as a plain number; anything else as it is."""
    if isinstance(value, torch.Tensor):
        return value.item() if value.numel() == 1 else value
    if isinstance(value, (str, int, float)) or not all(hasattr(value, name) for name in _LOOKS_LIKE_A_NUMBER):
        return value
    return value.item() if value.size == 1 else value


def step_number(step: Any) -> int | None:
    """A step as a plain whole number, from whatever holds one. Raises SettingError for anything else but None."""
    plain = number(step)
    if plain is None:
        return None
    if isinstance(plain, int) or (isinstance(plain, float) and plain.is_integer()):
        return int(plain)
    raise SettingError(f"log: step={step!r} is no whole number", hint="count the steps, or leave step out")


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, keys joined by `/`. Raises SettingError when two values end up under one key."""
    found: dict[str, Any] = {}
    for key, value in _walk(values, prefix):
        if key in found:
            raise SettingError(
                f"two values are called {key!r}", hint="rename one: keys of nested mappings are joined by `/`"
            )
        found[key] = value
    return found


def _walk(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        name = f"{prefix}{_key(key)}"
        if isinstance(value, Mapping):
            yield from _walk(value, f"{name}/")
        else:
            yield name, value


def nested_config(config: Any) -> dict[str, Any]:
    """A configuration (mapping, dataclass or argparse namespace) as dicts, lists, numbers, texts and None.

    Paths, dtypes, devices, dates and members of enumerations become texts, functions and classes their names. Raises SettingError
    that names the key for anything else.
    """
    plain = _plain(config, "config")
    if not isinstance(plain, dict):
        raise SettingError(
            f"config is of type {type(config).__name__}", hint="give a dict, a dataclass or an argparse namespace"
        )
    return plain


def flat_config(config: Any) -> dict[str, Any]:
    """A configuration as one dict of numbers, truth values and texts; lists become JSON, None becomes "None"."""
    return {key: _scalar(value) for key, value in flat(nested_config(config)).items()}


def _scalar(value: Any) -> Any:
    if isinstance(value, list):
        return json.dumps(value)
    return "None" if value is None else value


def _plain(value: Any, where: str) -> Any:
    """One value of a configuration; `where` is how a script would write its place."""
    value = number(value)
    if isinstance(value, enum.Enum):
        return _plain(value.value, where)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, _AS_TEXT):
        return str(value)
    if isinstance(value, _BY_NAME):
        return f"{value.__module__}.{value.__qualname__}"
    mapping = _mapping(value)
    if mapping is not None:
        return _plain_mapping(mapping, where)
    if isinstance(value, AbstractSet):
        value = sorted(value, key=str)
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{place}]") for place, item in enumerate(value)]
    raise SettingError(
        f"{where} is of type {type(value).__name__}, which trackers cannot show",
        hint="give numbers, texts, lists, dicts, dataclasses; or str(...) of it",
    )


def _plain_mapping(mapping: Mapping[Any, Any], where: str) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in mapping.items():
        name = _key(key)
        if name in made:
            raise SettingError(f"{where} has two keys that read {name!r}", hint="rename one")
        made[name] = _plain(value, f"{where}[{name!r}]")
    return made


def _key(key: Any) -> str:
    return str(key.value if isinstance(key, enum.Enum) else key)


def _mapping(value: Any) -> Mapping[Any, Any] | None:
    """What has named values, as a mapping; None for anything else."""
    if isinstance(value, Mapping):
        return value
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, (argparse.Namespace, types.SimpleNamespace)):
        return vars(value)
    return None
