"""Names in a checkpoint against names in a model: prefixes that wrappers and base models add or leave out."""

from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

from torch import nn

Value = TypeVar("Value")


def fit_names(model: nn.Module, expected: Collection[str], stored: Mapping[str, Value]) -> dict[str, Value]:
    """The entries of a checkpoint by the names that the model has for them.

    Undone are the `module.` of DistributedDataParallel, the `_orig_mod.` of torch.compile, and the `base_model_prefix` that
    models with a head have and their base models lack. A renaming is only made where it finds more of the model.
    """
    best = dict(stored)
    for prefix in ("module.", "_orig_mod."):
        if all(name.startswith(prefix) for name in best):
            best = _better(expected, best, {name.removeprefix(prefix): value for name, value in best.items()})
    base = getattr(model, "base_model_prefix", "")
    if base:
        added = {name if name in expected else f"{base}.{name}": value for name, value in best.items()}
        taken = {name if name in expected else name.removeprefix(f"{base}."): value for name, value in best.items()}
        best = _better(expected, _better(expected, best, added), taken)
    return best


def _better(expected: Collection[str], present: dict[str, Value], other: dict[str, Value]) -> dict[str, Value]:
    return other if _found(expected, other) > _found(expected, present) else present


def _found(expected: Collection[str], names: Iterable[str]) -> int:
    return sum(name in expected for name in names)
