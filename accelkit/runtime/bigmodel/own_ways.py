"""Modules that load their state in a way of their own: by hooks before loading, by `_load_from_state_dict`, or as extra state.

Torch's own code runs for each such module on a stand-in that shares everything with it but its tensors and attributes. What
that makes of the checkpoint, other names or other values, is loaded like the rest: nothing is changed before all is checked.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from accelkit.runtime.bigmodel.checkpoint import Stored
from accelkit.runtime.bigmodel.failures import CheckpointFileError
from accelkit.runtime.bigmodel.mapping import region_of
from accelkit.runtime.bigmodel.tensors import join, own_slots, walk_modules

_TABLES: Final = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
_EXTRA: Final = "_extra_state"
_MISFIT: Final = "size mismatch for"
"""How torch begins what is found, and said of all tensors, when the load is planned."""


@dataclass
class Converted:
    """A checkpoint as the modules of a model want it."""

    tensors: dict[str, Stored]
    own_shapes: set[str] = field(default_factory=set)
    """Names of tensors that their modules took as they are."""
    missing: list[str] = field(default_factory=list)
    """Names of extra state that is not there."""
    afterwards: list[Callable[[], None]] = field(default_factory=list)
    """What is to be done when the tensors are in their places."""


def convert(model: nn.Module, stored: Mapping[str, Stored], path: Path, *, tensors: bool) -> Converted:
    """Let modules that have ways of their own make of a checkpoint what they want; without `tensors`, of extra state alone.

    Raises CheckpointFileError with what they say is wrong.
    """
    result = Converted(dict(stored))
    problems: list[str] = []
    for name, module in walk_modules(model):
        _take_extra_state(name, module, result)
        if tensors and _has_own_way(name, module, result.tensors):
            problems += _convert(name, module, path, result)
    if problems:
        raise CheckpointFileError(f"{path} does not fit:\n  " + "\n  ".join(problems))
    return result


def _take_extra_state(name: str, module: nn.Module, result: Converted) -> None:
    if type(module).set_extra_state is nn.Module.set_extra_state:
        return
    source = result.tensors.pop(join(name, _EXTRA), None)
    if source is None:
        result.missing.append(join(name, _EXTRA))
    else:
        result.afterwards.append(lambda: module.set_extra_state(source.read().clone()))


def _has_own_way(name: str, module: nn.Module, tensors: Mapping[str, Stored]) -> bool:
    if module._load_state_dict_pre_hooks:  # noqa: SLF001  (torch tells it nowhere else)
        return True
    way = type(module)._load_from_state_dict  # noqa: SLF001  (what a module overrides)
    if way is _NormBase._load_from_state_dict:  # noqa: SLF001  (only concerned with what old checkpoints lack)
        return any(slot.is_persistent and slot.name not in tensors for slot in own_slots(module, name))
    return way is not nn.Module._load_from_state_dict and not isinstance(module, torch.jit.ScriptModule)  # noqa: SLF001


def _convert(name: str, module: nn.Module, path: Path, result: Converted) -> list[str]:
    """Run torch's own code for one module and keep what comes of it; returns what it found wrong."""
    prefix = f"{name}." if name else ""
    sources = {key: source for key, source in result.tensors.items() if key.startswith(prefix)}
    before = {key: source.read() for key, source in sources.items()}
    state: dict[str, Any] = dict(before)
    twin = _twin(module)
    problems: list[str] = []
    how = {"assign_to_params_buffers": True}
    twin._load_from_state_dict(state, prefix, how, True, [], [], problems)  # noqa: SLF001  (torch's way)
    named = {id(value): sources[key] for key, value in before.items()}
    for key in before.keys() - state.keys():
        del result.tensors[key]
    for key, value in state.items():
        if isinstance(value, torch.Tensor) and value is not before.get(key):
            result.tensors[key] = named.get(id(value)) or _as_stored(value, path)
    _keep_own(name, module, twin, state, path, result)
    return [problem for problem in problems if not problem.startswith(_MISFIT)]


def _keep_own(
    name: str, module: nn.Module, twin: nn.Module, state: Mapping[str, Any], path: Path, result: Converted
) -> None:
    """What the stand-in has become: its tensors, where they are not simply the checkpoint's, and its attributes."""
    present = {slot.name: slot.tensor for slot in own_slots(module, name)}
    for slot in own_slots(twin, name):
        if slot.tensor is present.get(slot.name):
            continue
        result.own_shapes.add(slot.name)
        if not _is_same(slot.tensor, state.get(slot.name)):
            result.tensors[slot.name] = _as_stored(slot.tensor, path)
    missing = object()
    for key, value in twin.__dict__.items():
        if key not in _TABLES and value is not module.__dict__.get(key, missing):
            result.afterwards.append(partial(module.__dict__.update, {key: value}))


def _is_same(first: torch.Tensor, second: Any) -> bool:
    """Whether two tensors are one piece of memory, seen alike."""
    if not isinstance(second, torch.Tensor) or first.dtype != second.dtype or first.shape != second.shape:
        return False
    return first.data_ptr() == second.data_ptr() and first.stride() == second.stride()


def _twin(module: nn.Module) -> nn.Module:
    """The same module, but what is set on it stays with it."""
    made: nn.Module = object.__new__(type(module))
    made.__dict__.update(module.__dict__)
    for table in _TABLES:
        made.__dict__[table] = module.__dict__[table].copy()
    return made


def _as_stored(value: torch.Tensor, path: Path) -> Stored:
    found = value.detach()
    return Stored(found.dtype, tuple(found.shape), path, region_of(found) is not None, lambda: found)
