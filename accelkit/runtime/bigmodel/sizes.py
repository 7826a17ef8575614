"""How many bytes the parts of a model take. A tensor with several names counts once in whatever holds more than one of them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from accelkit.runtime.bigmodel.bytesize import CustomDtype, convert_file_size_to_int, dtype_byte_size
from accelkit.runtime.bigmodel.tensors import FIRST_FORWARD, all_slots, is_below, join
from accelkit.runtime.errors import SettingError

Dtype = torch.dtype | CustomDtype | str | None


def as_dtype(dtype: Dtype) -> torch.dtype | CustomDtype | None:
    """A dtype, also from its name ("bfloat16", "torch.bfloat16")."""
    if isinstance(dtype, str):
        found = getattr(torch, dtype.removeprefix("torch."), None)
        if not isinstance(found, torch.dtype):
            raise SettingError(f"dtype={dtype!r} is not the name of a torch.dtype")
        return found
    given: Any = dtype
    if given is not None and not isinstance(given, (torch.dtype, CustomDtype)):
        raise SettingError(f"dtype={dtype!r} is no torch.dtype")
    return dtype


def tensor_bytes(
    name: str, tensor: torch.Tensor, dtype: Dtype = None, special_dtypes: Mapping[str, Any] | None = None
) -> int:
    """Bytes of a tensor once loaded: a special dtype counts as given, `dtype` only shrinks floating tensors.

    Raises SettingError for one of a lazy module, which has no size yet.
    """
    if nn.parameter.is_lazy(tensor):
        raise SettingError(f"{name} has no shape yet: its module is lazy", hint=FIRST_FORWARD)
    count = tensor.numel()
    if special_dtypes and name in special_dtypes:
        return int(count * dtype_byte_size(as_dtype(special_dtypes[name]) or tensor.dtype))
    own = count * tensor.element_size()
    wanted = as_dtype(dtype)
    if wanted is None or not tensor.is_floating_point():
        return own
    return min(own, int(count * dtype_byte_size(wanted)))


def compute_module_sizes(
    model: nn.Module,
    dtype: Dtype = None,
    special_dtypes: Mapping[str, Any] | None = None,
    buffers_only: bool = False,
) -> dict[str, int]:
    """Bytes of every module, parameter and buffer, by dotted name; the whole model is "".

    `dtype` only shrinks floating tensors; `special_dtypes` gives single tensors a dtype of their own.
    """
    sizes: dict[str, int] = {"": 0}
    counted: dict[str, set[int]] = {}
    for slot in all_slots(model):
        tensor = slot.tensor
        if buffers_only and not slot.is_buffer:
            continue
        size = tensor_bytes(slot.name, tensor, dtype, special_dtypes)
        for prefix in _prefixes(slot.name):
            seen = counted.setdefault(prefix, set())
            sizes.setdefault(prefix, 0)
            if id(tensor) not in seen:
                seen.add(id(tensor))
                sizes[prefix] += size
    return sizes


def _prefixes(name: str) -> Iterable[str]:
    parts = name.split(".")
    return (".".join(parts[:length]) for length in range(len(parts) + 1))


def compute_module_total_buffer_size(
    model: nn.Module, dtype: Dtype = None, special_dtypes: Mapping[str, Any] | None = None
) -> int:
    """Bytes of all buffers of a model."""
    return compute_module_sizes(model, dtype, special_dtypes, buffers_only=True)[""]


def get_max_layer_size(
    modules: Sequence[tuple[str, Any]], module_sizes: Mapping[str, int], no_split_module_classes: Sequence[str]
) -> tuple[int, list[str]]:
    """Bytes of the largest layer among (name, module or tensor) pairs, and the names of all layers of that size.

    A layer is a tensor, a module without children, or one of a class that is not split.
    """
    layers: dict[str, int] = {}
    pending = list(modules)
    while pending:
        name, module = pending.pop(0)
        children = list(module.named_children()) if isinstance(module, nn.Module) else []
        if not children or type(module).__name__ in no_split_module_classes:
            layers[name] = module_sizes.get(name, 0)
        else:
            pending = [(f"{name}.{key}" if name else key, child) for key, child in children] + pending
    largest = max(layers.values(), default=0)
    return largest, [name for name, size in layers.items() if size == largest]


def calculate_maximum_sizes(model: nn.Module) -> tuple[int, tuple[int, list[str]]]:
    """Bytes of the model, and (bytes, names) of its largest layers; a model's `_no_split_modules` stay whole."""
    sizes = compute_module_sizes(model)
    return sizes[""], get_max_layer_size(list(model.named_children()), sizes, unsplit_classes(model, None))


def get_module_leaves(module_sizes: Mapping[str, int]) -> list[str]:
    """The names that hold no other name."""
    parents = {name.rpartition(".")[0] for name in module_sizes if name}
    return [name for name in module_sizes if name and name not in parents]


def get_module_size_with_ties(
    tied_params: Sequence[str],
    module_size: int,
    module_sizes: Mapping[str, int],
    modules_to_treat: Sequence[tuple[str, Any]],
) -> tuple[int, list[str], list[Any]]:
    """Bytes of a module together with the modules that share parameters with it; and those modules' names, and they themselves.

    Args:
        tied_params: names that parameters of the module have elsewhere.
        module_size: bytes of the module alone.
        module_sizes: see `compute_module_sizes`.
        modules_to_treat: (name, module or parameter) pairs in which the others are looked for.

    A shared parameter counts once, and a module that shares several comes once.
    """
    total, found = module_size, dict[str, Any]()
    for parameter in tied_params:
        holder = next(((name, module) for name, module in modules_to_treat if is_below(parameter, name)), None)
        if holder is None:
            continue
        name, module = holder
        total += (0 if name in found else module_sizes[name]) - module_sizes[parameter]
        found[name] = module
    return total, list(found), list(found.values())


def fallback_allocate(
    modules: Sequence[tuple[str, Any]],
    module_sizes: Mapping[str, int],
    size_limit: int | str,
    no_split_module_classes: Sequence[str] | str | None = None,
    tied_parameters: Sequence[Sequence[str]] | None = None,
) -> tuple[str | None, Any, list[tuple[str, Any]]]:
    """The first module in the model's order, outer ones before inner ones, that fits into `size_limit`.

    Args:
        modules: (name, module) pairs to look in, and below.
        module_sizes: see `compute_module_sizes`.
        size_limit: bytes, or a text such as "2GiB".
        no_split_module_classes: names of classes that are not looked into.
        tied_parameters: groups of names of one parameter each; a module must fit together with those that share its parameters.

    Returns its name, itself, and the pairs that remain, in which what was looked into is replaced by its parts; None, None and
    the pairs as given when nothing fits.
    """
    limit, whole = convert_file_size_to_int(size_limit), as_names(no_split_module_classes)
    before, pending = list[tuple[str, Any]](), list(modules)
    while pending:
        name, module = pending.pop(0)
        rest = [*before, *pending]
        ties = [other for group in tied_parameters or () for other in _elsewhere(name, group)]
        if get_module_size_with_ties(ties, module_sizes[name], module_sizes, rest)[0] <= limit:
            return name, module, rest
        parts = [] if type(module).__name__ in whole else list(module.named_children())
        pending = [(join(name, key), part) for key, part in parts] + pending
        if not parts:
            before.append((name, module))
    return None, None, list(modules)


def _elsewhere(name: str, group: Sequence[str]) -> list[str]:
    """Of the names of one parameter those that lie outside a module that holds it."""
    outside = [other for other in group if not is_below(other, name)]
    return outside if len(outside) < len(group) else []


def as_names(given: Sequence[str] | str | None) -> list[str]:
    """Names of classes, of which one may be given alone."""
    return [given] if isinstance(given, str) else list(given or ())


def unsplit_classes(model: nn.Module, given: Sequence[str] | str | None) -> list[str]:
    """Names of classes that stay whole: those given, else the ones that the model names in `_no_split_modules`."""
    if given is None:
        given = getattr(model, "_no_split_modules", None) or ()
    return as_names(given)
