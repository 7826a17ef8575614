"""Gathering what a step computed, without the samples that were repeated to fill the ranks' shares."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from accelkit.runtime import arrays, structure
from accelkit.runtime.collectives import packing
from accelkit.runtime.collectives.nested import NestedCollectives
from accelkit.runtime.data.shard import Tail
from accelkit.runtime.errors import DistributedOperationException


def gather_for_metrics(
    operations: NestedCollectives, data: Any, tail: Tail | None, *, use_gather_object: bool = False
) -> Any:
    """What all ranks computed in this step, in the order of samples, each sample once.

    Tensors and arrays are joined along their first dimension; lists of other objects are joined, too; the structure is kept. In a step
    whose round is not complete, what was repeated is cut: of a tensor whose first dimension counts the samples of this rank's batch, and
    of a list of that length. Anything else (a loss without dimensions, a matrix of another height) is gathered whole.
    """
    size, rank = operations.carrier.size, operations.carrier.rank
    if size == 1:
        return data
    if any(arrays.is_one(leaf) for leaf in structure.leaves(data)):
        return _gather_arrays(operations, data, tail, use_gather_object=use_gather_object)
    stop, gather = _way(operations, data, use_gather_object)
    if tail is None or len(tail.counts) != size:
        return gather(data)
    _check_presence(tail)
    counts = _counts(operations, data, tail, stop)
    keep = tuple(count if kept < 0 else kept for kept, count in zip(tail.keep, counts, strict=True))
    gathered = gather(_level(data, counts, rank, stop))
    cut = [
        _cut(whole, counts, keep) if _length(mine) == counts[rank] else whole
        for mine, whole in zip(structure.leaves(data, stop), _leaves_like(data, gathered, stop), strict=True)
    ]
    return structure.with_leaves(data, cut, stop)


def _gather_arrays(operations: NestedCollectives, data: Any, tail: Tail | None, *, use_gather_object: bool) -> Any:
    """The same where arrays are among the data: they travel as tensors or lists, and are arrays again at the end."""
    stop = structure.is_list if use_gather_object else structure.is_samples
    plain = structure.map_leaves(arrays.as_plain, data, stop)
    whole = gather_for_metrics(operations, plain, tail, use_gather_object=use_gather_object)
    pairs = zip(structure.leaves(data, stop), _leaves_like(data, whole, stop), strict=True)
    return structure.with_leaves(data, [arrays.like(before, after) for before, after in pairs], stop)


def _way(
    operations: NestedCollectives, data: Any, use_gather_object: bool
) -> tuple[structure.Predicate | None, Callable[[Any], Any]]:
    """What counts as a leaf besides tensors, and what gathers: tensors alone travel faster than objects."""
    if use_gather_object:
        return structure.is_list, partial(operations.gather_mixed, lists=True)
    if all(isinstance(leaf, torch.Tensor) for leaf in structure.leaves(data)):
        return None, operations.gather
    return structure.is_samples, partial(operations.gather_mixed, lists=False)


def _check_presence(tail: Tail) -> None:
    """Refuse to wait for ranks that cannot come: the step itself says that they have no batch in it."""
    if tail.absent:
        raise DistributedOperationException(
            f"gather_for_metrics: in this step of the loader rank {', '.join(map(str, tail.absent))} has no batch and will not come",
            hint="leave even_batches=True where results are gathered, or gather after the loop what each rank has kept",
        )


def _counts(operations: NestedCollectives, data: Any, tail: Tail, stop: structure.Predicate | None) -> tuple[int, ...]:
    """Samples in each rank's batch; where the sampler could not tell, the ranks tell each other the length of their first tensor."""
    if -1 not in tail.counts:
        return tail.counts
    lengths = [_length(leaf) for leaf in structure.leaves(data, stop)]
    mine = next((length for length in lengths if length >= 0), 0)
    return tuple(operations.lengths("gather_for_metrics", mine))


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
