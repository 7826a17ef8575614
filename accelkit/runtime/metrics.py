"""Gathering what a step computed, without the samples that were repeated to fill the ranks' shares."""

from typing import Any

import torch

from accelkit.runtime import structure
from accelkit.runtime.collectives import packing
from accelkit.runtime.collectives.nested import NestedCollectives
from accelkit.runtime.data.shard import Tail


def gather_for_metrics(
    operations: NestedCollectives, data: Any, tail: Tail | None, *, use_gather_object: bool = False
) -> Any:
    """What all ranks computed in this step, in the order of samples, each sample once.

    Tensors are joined along their first dimension; lists of other objects are joined, too; the structure is kept. In a step
    whose round is not complete, what was repeated is cut: of a tensor whose first dimension counts the samples of this rank's batch, and
    of a list of that length. Anything else (a loss without dimensions, a matrix of another height) is gathered whole.
    """
    carrier = operations.carrier
    if carrier.size == 1:
        return data
    as_objects = use_gather_object or not all(isinstance(leaf, torch.Tensor) for leaf in structure.leaves(data))
    stop = (structure.is_list if use_gather_object else structure.is_flat) if as_objects else None
    if tail is not None and len(tail.counts) != carrier.size:
        tail = None
    counts = _counts(data, tail, carrier.rank, stop) if tail is not None else ()
    filled = _level(data, counts, carrier.rank, stop) if counts else data
    if as_objects:
        gathered = operations.gather_mixed(filled, lists=use_gather_object)
    else:
        gathered = operations.gather(filled)
    if tail is None:
        return gathered
    keep = tuple(count if kept < 0 else kept for kept, count in zip(tail.keep, counts, strict=True))
    cut = [
        _cut(whole, counts, keep) if _length(mine) == counts[carrier.rank] else whole
        for mine, whole in zip(structure.leaves(data, stop), _leaves_like(data, gathered, stop), strict=True)
    ]
    return structure.with_leaves(data, cut, stop)


def _counts(data: Any, tail: Tail, rank: int, stop: structure.Predicate | None) -> tuple[int, ...]:
    """Samples in each rank's batch; where the sampler could not tell, all have as many as this rank's first tensor."""
    if -1 not in tail.counts:
        return tail.counts
    lengths = [_length(leaf) for leaf in structure.leaves(data, stop)]
    known = next((length for length in lengths if length >= 0), 0)
    return tuple(known if count < 0 else count for count in tail.counts)


def _level(data: Any, counts: tuple[int, ...], rank: int, stop: structure.Predicate | None) -> Any:
    """Tensors that count samples, made as long as those of the rank with most: shares differ when ranks need not be even."""
    most = max(counts)
    if counts[rank] == most and min(counts) == most:
        return data

    def fill(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and _length(leaf) == counts[rank] < most:
            return packing.pad(leaf, 0, most, 0, first=False)
        return leaf

    return structure.map_leaves(fill, data, stop)


def _leaves_like(data: Any, gathered: Any, stop: structure.Predicate | None) -> list[Any]:
    """The leaves of what was gathered, at the places of the leaves of `data`."""
    if not structure.is_container(data) or (stop is not None and stop(data)):
        return [gathered]
    found = []
    for (_, before), (_, after) in zip(structure.children(data), structure.children(gathered), strict=True):
        found += _leaves_like(before, after, stop)
    return found


def _length(leaf: Any) -> int:
    if isinstance(leaf, torch.Tensor):
        return int(leaf.shape[0]) if leaf.dim() else -1
    return len(leaf) if isinstance(leaf, (list, tuple)) else -1


def _cut(whole: Any, counts: tuple[int, ...], keep: tuple[int, ...]) -> Any:
    """The real samples of every rank, out of what all have brought."""
    is_tensor = isinstance(whole, torch.Tensor)
    spans = (max(counts),) * len(counts) if is_tensor else counts
    starts = [sum(spans[:rank]) for rank in range(len(spans))]
    parts = [whole[start : start + kept] for start, kept in zip(starts, keep, strict=True)]
    if is_tensor:
        return torch.cat(parts)
    return type(whole)([item for part in parts for item in part])
