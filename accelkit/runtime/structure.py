"""Walking a nested structure: the one place that knows how containers are taken apart and put together again.

Containers are lists, tuples (named ones too), mappings, dataclass instances, deques, and subclasses of them. Anything
else is a leaf. A container is rebuilt by copying it and setting its values, so that subclasses keep their own attributes
and their constructors are not called.
"""

import copy
import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

Leaf = Callable[[Any], Any]
Predicate = Callable[[Any], bool]
_COMMON = (dict, list, tuple)


def map_leaves(function: Leaf, data: Any, stop: Predicate | None = None) -> Any:
    """A structure of the same types in which each leaf is `function(leaf)`. The input is not changed.

    A container for which `stop` is true counts as a leaf.
    """
    if isinstance(data, torch.Tensor) or (stop is not None and stop(data)):
        return function(data)
    kind = type(data)
    if kind is dict:
        return {key: map_leaves(function, value, stop) for key, value in data.items()}
    if kind is list:
        return [map_leaves(function, value, stop) for value in data]
    if kind is tuple:
        return tuple([map_leaves(function, value, stop) for value in data])
    if not is_container(data):
        return function(data)
    return rebuild(data, [map_leaves(function, value, stop) for _, value in children(data)])


def is_list(data: Any) -> bool:
    """Whether `data` is a list, whatever it holds."""
    return isinstance(data, list)


def is_flat(data: Any) -> bool:
    """Whether `data` is a list or plain tuple of values that are neither tensors nor containers; an empty one is."""
    if not isinstance(data, (list, tuple)) or hasattr(data, "_fields"):
        return False
    return not any(isinstance(item, torch.Tensor) or is_container(item) for item in data)


def is_samples(data: Any) -> bool:
    """Whether `data` is one sample after another: like :func:`is_flat`; in a list samples may be lists and mappings without tensors.

    Token lists and dictionaries of results are such samples. Tuples are not: what loaders make of several fields is a list of tuples.
    """
    if not isinstance(data, list):
        return is_flat(data)
    return not any(isinstance(item, torch.Tensor) or (is_container(item) and not _is_sample(item)) for item in data)


def _is_sample(item: Any) -> bool:
    if not isinstance(item, (list, Mapping)):
        return False
    return not any(isinstance(leaf, torch.Tensor) or hasattr(leaf, "__array__") for leaf in leaves(item))


def is_container(data: Any) -> bool:
    """Whether `data` is walked into."""
    if type(data) in _COMMON:
        return True
    if isinstance(data, (list, tuple, Mapping, deque)):
        return True
    return dataclasses.is_dataclass(data) and not isinstance(data, type)


def children(data: Any) -> list[tuple[str, Any]]:
    """What lies directly in a container: how it is reached (as one writes it in Python), and the value."""
    if type(data) is dict:
        return [(f"[{key!r}]", value) for key, value in data.items()]
    if isinstance(data, Mapping):
        return [(f"[{key!r}]", data[key]) for key in data]
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return [(f".{name}", value) for name, value in zip(data._fields, data, strict=True)]
    if isinstance(data, (list, tuple, deque)):
        return [(f"[{index}]", value) for index, value in enumerate(data)]
    return [(f".{field.name}", getattr(data, field.name)) for field in dataclasses.fields(data)]


def rebuild(data: Any, values: Sequence[Any]) -> Any:
    """A container like `data` that holds `values` instead, in the order of :func:`children`.

    Raises TypeError for a mapping that can neither be changed nor made anew.
    """
    if isinstance(data, tuple):
        return _rebuild_tuple(data, values)
    if isinstance(data, Mapping):
        return _rebuild_mapping(data, values)
    made = copy.copy(data)
    if isinstance(data, list):
        made[:] = values
    elif isinstance(data, deque):
        made.clear()
        made.extend(values)
    else:
        for field, value in zip(dataclasses.fields(data), values, strict=True):
            object.__setattr__(made, field.name, value)
    return made


def _rebuild_tuple(data: Any, values: Sequence[Any]) -> Any:
    kind = type(data)
    if (
        hasattr(kind, "n_sequence_fields") or kind is torch.Size
    ):  # of C's making: torch.return_types, os.stat_result, shapes
        return kind(values)
    made = tuple.__new__(kind, values)
    if hasattr(data, "__dict__"):
        made.__dict__.update(data.__dict__)
    return made


def _rebuild_mapping(data: Mapping[Any, Any], values: Sequence[Any]) -> Any:
    if isinstance(data, MutableMapping):
        made = _copied(data)
        for key, value in zip(list(data), values, strict=True):
            made[key] = value
        return made
    if isinstance(data, MappingProxyType):
        return MappingProxyType(dict(zip(data, values, strict=True)))
    raise TypeError(
        f"{type(data).__module__}.{type(data).__qualname__} cannot be changed, so it cannot be rebuilt with other values; "
        "use a dict"
    )


def _copied(data: MutableMapping[Any, Any]) -> MutableMapping[Any, Any]:
    """A copy that does not share what the values are kept in: a class of the script's own may hold them in a dict of its own."""
    made = copy.copy(data)
    if not hasattr(type(data), "__copy__"):
        for name, value in list(getattr(made, "__dict__", {}).items()):
            if isinstance(value, MutableMapping):
                made.__dict__[name] = _copied(value)
    return made


def flatten(data: Any, stop: Predicate | None = None) -> list[tuple[str, Any]]:
    """Each leaf with its path, for example `['x'][0].weight`, in order; the path of a bare leaf is empty."""
    found: list[tuple[str, Any]] = []
    _flatten(data, "", stop, found)
    return found


def _flatten(data: Any, path: str, stop: Predicate | None, found: list[tuple[str, Any]]) -> None:
    if isinstance(data, torch.Tensor) or not is_container(data) or (stop is not None and stop(data)):
        found.append((path, data))
        return
    for step, value in children(data):
        _flatten(value, path + step, stop, found)


def walk(data: Any, stop: Predicate | None = None) -> Iterator[tuple[str, Any]]:
    """The same, one after the other."""
    return iter(flatten(data, stop))


def leaves(data: Any, stop: Predicate | None = None) -> list[Any]:
    """All leaves, in order."""
    return [leaf for _, leaf in flatten(data, stop)]


def with_leaves(data: Any, values: Sequence[Any], stop: Predicate | None = None) -> Any:
    """The structure of `data` with other leaves, given in order."""
    rest = iter(values)
    return map_leaves(lambda _: next(rest), data, stop)


def tensor_leaves(data: Any, operation: str) -> list[torch.Tensor]:
    """All leaves, which must be ordinary tensors. Raises TypeError that names the first one that is not, and where it is."""
    pairs = flatten(data)
    require_tensors(pairs, operation)
    return [leaf for _, leaf in pairs]


def require_tensors(pairs: Sequence[tuple[str, Any]], operation: str) -> None:
    """Raise TypeError, that names the first leaf and its path, when a leaf is no ordinary tensor."""
    for path, leaf in pairs:
        if not _is_plain(leaf):
            raise TypeError(
                f"{operation}: {path or 'the argument'} is {_describe_kind(leaf)}, which cannot be exchanged as a tensor; "
                "use gather_object, or gather_for_metrics(..., use_gather_object=True), for objects"
            )


def are_plain(found: Sequence[Any]) -> bool:
    """Whether all leaves are ordinary tensors: strided, not nested, not quantized."""
    return all(_is_plain(leaf) for leaf in found)


def _is_plain(leaf: Any) -> bool:
    return (
        isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and not leaf.is_quantized and not leaf.is_nested
    )


def _describe_kind(leaf: Any) -> str:
    if not isinstance(leaf, torch.Tensor):
        return f"of type {type(leaf).__name__}"
    if leaf.is_nested:
        return "a nested (jagged) tensor"
    if leaf.is_quantized:
        return "a quantized tensor"
    return f"a tensor of layout {leaf.layout}"


def describe(data: Any) -> str:
    """Shapes and types of all leaves on one line, for messages."""
    parts = [f"{path}: {_describe_leaf(leaf)}" if path else _describe_leaf(leaf) for path, leaf in walk(data)]
    return ", ".join(parts) or f"an empty {type(data).__name__}"


def _describe_leaf(leaf: Any) -> str:
    if isinstance(leaf, torch.Tensor):
        return f"{list(leaf.shape)} {str(leaf.dtype).removeprefix('torch.')}"
    return type(leaf).__name__


def move(data: Any, device: torch.device, *, non_blocking: bool = False, skip_keys: Sequence[str] = ()) -> Any:
    """`data` on a device: tensors, and whatever has a `to` method of its own (models' batch classes, packed sequences).

    Values of mappings under a key of `skip_keys` stay where they are, at every depth.
    """
    skips = isinstance(data, Mapping) and any(key in data for key in skip_keys)
    if not is_container(data) or (hasattr(data, "to") and not skips):
        return _move_one(data, device, non_blocking)
    keys = list(data) if isinstance(data, Mapping) else None
    moved = [
        value
        if keys is not None and keys[place] in skip_keys
        else move(value, device, non_blocking=non_blocking, skip_keys=skip_keys)
        for place, (_, value) in enumerate(children(data))
    ]
    return rebuild(data, moved)


def _move_one(data: Any, device: torch.device, non_blocking: bool) -> Any:
    if not hasattr(data, "to") or isinstance(data, type):
        return data
    if not non_blocking or isinstance(data, torch.Tensor):
        return data.to(device, non_blocking=non_blocking) if isinstance(data, torch.Tensor) else data.to(device)
    try:
        return data.to(device, non_blocking=True)
    except TypeError:  # its `to` does not know the argument
        return data.to(device)


def find_batch_size(data: Any) -> int | None:
    """Length of the first dimension of the first tensor that has one, depth first; None without such a tensor."""
    for _, leaf in walk(data):
        if isinstance(leaf, torch.Tensor) and leaf.dim() > 0:
            return int(leaf.shape[0])
    return None


def concatenate(parts: Sequence[Any], dim: int = 0) -> Any:
    """Structures of tensors of the same build, joined leaf by leaf along `dim`."""
    columns = zip(*(tensor_leaves(part, "concatenate") for part in parts), strict=True)
    return with_leaves(parts[0], [torch.cat(column, dim=dim) for column in columns])


def slice_tensors(data: Any, part: slice) -> Any:
    """Each tensor of a structure cut along its first dimension."""
    tensor_leaves(data, "slice_tensors")
    return map_leaves(lambda leaf: leaf[part], data)


def to_float32(data: Any) -> Any:
    """Tensors of half precision as float32; everything else as it is."""
    return map_leaves(_widen, data)


def _widen(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor) and leaf.dtype in (torch.float16, torch.bfloat16):
        return leaf.float()
    return leaf
