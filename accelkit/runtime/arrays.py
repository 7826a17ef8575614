"""numpy's arrays among what ranks exchange: as tensors where torch has their type, else as lists. numpy itself is not needed here."""

import sys
from typing import Any, Final

import torch

_NUMBERS: Final = "?bhilqBfde"
"""Codes of the types of numbers that numpy and torch have in common."""


def is_one(leaf: Any) -> bool:
    """Whether a leaf is an array of at least one dimension."""
    numpy = sys.modules.get("numpy")  # where nobody has imported it, nobody has arrays
    return numpy is not None and isinstance(leaf, numpy.ndarray) and leaf.ndim > 0


def as_plain(leaf: Any) -> Any:
    """A tensor or a list of the same values; what is no array stays."""
    if not is_one(leaf):
        return leaf
    if leaf.dtype.char in _NUMBERS and leaf.dtype.isnative:
        return torch.from_numpy(leaf.copy())
    return list(leaf)


def like(before: Any, after: Any) -> Any:
    """What :func:`as_plain` made, and ranks have exchanged, as an array of the same type again."""
    if not is_one(before):
        return after
    if isinstance(after, torch.Tensor):
        return after.cpu().numpy()
    numpy = sys.modules["numpy"]
    if before.dtype.hasobject and before.ndim == 1:  # what it holds may be lists, which an array would take apart
        made = numpy.empty(len(after), dtype=before.dtype)
        made[:] = after
        return made
    return numpy.array(after)
