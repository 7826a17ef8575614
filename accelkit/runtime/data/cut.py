"""Batches that are made already: how many samples they hold, and how they are cut into parts for the ranks.

What counts samples, by the rule that gathering for metrics follows too: tensors whose first dimension has the batch's length,
and lists and tuples of plain values of that length. Everything else belongs to the whole batch and is repeated.
"""

from itertools import cycle, islice
from typing import Any

import torch

from accelkit.runtime import structure
from accelkit.runtime.data.shard import Round, Tail


def count(batch: Any) -> int:
    """Samples in a batch: the first dimension of its first tensor, else the length of its first list; -1 without either."""
    found = structure.find_batch_size(batch)
    if found is not None:
        return found
    lists = [len(leaf) for leaf in structure.leaves(batch, structure.is_flat) if structure.is_flat(leaf)]
    return lists[0] if lists else -1


def slices(batch: Any, size: int) -> Round:
    """A part of the batch for each of `size` ranks, all of one length; the first samples fill up what is lacking.

    A batch without samples that can be counted goes to every rank as it is; it counts on rank 0 only.
    """
    length = count(batch)
    if length <= 0:
        return [batch] * size, Tail((length,) * size, (length, *[0] * (size - 1)))
    share = -(-length // size)
    places = list(islice(cycle(range(length)), share * size))
    parts = [take(batch, places[rank * share : (rank + 1) * share], length) for rank in range(size)]
    if share * size == length:
        return parts, None
    keep = tuple(min(max(length - rank * share, 0), share) for rank in range(size))
    return parts, Tail((share,) * size, keep)


def take(batch: Any, places: list[int], length: int) -> Any:
    """Some samples of a batch of `length`, in the structure of the batch."""
    first, consecutive = places[0], places == list(range(places[0], places[0] + len(places)))

    def pick(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            if not leaf.dim() or leaf.shape[0] != length:
                return leaf
            return leaf[first : first + len(places)] if consecutive else leaf[places]
        if isinstance(leaf, (list, tuple)) and len(leaf) == length:
            return structure.rebuild(leaf, [leaf[place] for place in places])
        return leaf

    return structure.map_leaves(pick, batch, structure.is_flat)
