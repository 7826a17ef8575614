"""Operations on nested structures of tensors and objects, over any carrier.

Each operation first exchanges a header of a fixed size: a digest of its name and of what this rank brings along. When the
digests differ, every rank raises an error that shows what each rank holds; nothing is sent that could hang or interleave.
Tensors then travel in one buffer per device, whatever the number of leaves.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import torch

from accelkit.runtime import structure
from accelkit.runtime.collectives import packing
from accelkit.runtime.collectives.base import Collectives
from accelkit.runtime.errors import DistributedOperationException, SettingError

_DIGEST: Final = 4  # 64-bit words
_HEADER: Final = 64
REDUCTIONS: Final = ("sum", "mean", "max")


class NestedCollectives:
    """Structure-wise operations of one rank. All ranks call the same ones in the same order."""

    def __init__(self, carrier: Collectives, control: torch.device) -> None:
        self.carrier = carrier
        self._control = control
        """The device on which headers travel."""

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        if self.carrier.size > 1:
            self._agree("wait_for_everyone", "")

    def gather(self, data: Any) -> Any:
        """Tensors of all ranks joined along their first dimension, in the order of ranks; a 0-d tensor becomes one of `size`.

        All ranks must hold the same structure, shapes and types. Raises DistributedOperationException on every rank when
        they do not, and TypeError for leaves that are not tensors. One rank: the argument itself.
        """
        if self.carrier.size == 1:
            return data
        self._agree("gather", data)
        return structure.with_leaves(data, self._gather_leaves(structure.tensor_leaves(data, "gather")))

    def _gather_leaves(self, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        gathered: list[torch.Tensor] = list(leaves)
        with torch.no_grad():
            for places in packing.by_device(leaves):
                here = [leaves[place] for place in places]
                buffer = self.carrier.all_gather(packing.pack(here))
                for place, whole in zip(places, packing.unpack(buffer, here), strict=True):
                    gathered[place] = whole
        return gathered

    def pad(self, data: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
        """Tensors padded along `dim` to the largest size that any rank has there; their types stay.

        A tensor without that dimension is left alone. One rank: the argument itself.
        """
        if self.carrier.size == 1:
            return data
        leaves = structure.leaves(data)
        sizes = [packing.size_at(leaf, dim) for leaf in leaves]
        every = self._agree("pad_across_processes", data, shapes=False, numbers=sizes)
        structure.tensor_leaves(data, "pad_across_processes")
        wanted = [max(column) for column in zip(*every, strict=True)]
        padded = [
            leaf if have in (-1, want) else packing.pad(leaf, dim, want, pad_index, first=pad_first)
            for leaf, have, want in zip(leaves, sizes, wanted, strict=True)
        ]
        return structure.with_leaves(data, padded)

    def reduce(self, data: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Tensors reduced over all ranks ("sum", "mean", "max") and multiplied by `scale`; always new tensors.

        A mean of whole numbers is a float; sums of booleans count; all else keeps its type.
        """
        if reduction not in REDUCTIONS:
            raise SettingError(f"reduction={reduction!r}: must be one of {', '.join(REDUCTIONS)}")
        if self.carrier.size > 1:
            self._agree(f"reduce {reduction}", data)
        leaves = structure.tensor_leaves(data, "reduce")
        work = [packing.for_reduction(leaf, reduction) for leaf in leaves]
        for places in packing.by_device_and_type(work):
            flat = packing.flatten([work[place] for place in places])
            self.carrier.all_reduce(flat, "max" if reduction == "max" else "sum")
            for place, part in zip(places, packing.unflatten(flat, [work[p] for p in places]), strict=True):
                work[place] = part
        size = self.carrier.size
        return structure.with_leaves(
            data,
            [packing.reduced(w, leaf, reduction, size, scale) for w, leaf in zip(work, leaves, strict=True)],
        )

    def broadcast(self, data: Any, source: int = 0) -> Any:
        """Fill the tensors of every rank with those of rank `source`, in place, and return the structure."""
        self._check_source(source)
        if self.carrier.size == 1:
            return data
        self._agree(f"broadcast from {source}", data)
        leaves = structure.tensor_leaves(data, "broadcast")
        with torch.no_grad():
            for places in packing.by_device(leaves):
                here = [leaves[place] for place in places]
                buffer = packing.pack(here)
                buffer = buffer.clone() if len(here) == 1 else buffer
                self.carrier.broadcast(buffer, source)
                if self.carrier.rank != source:
                    for leaf, sent in zip(here, packing.unpack_one(buffer, here), strict=True):
                        leaf.copy_(sent)
        return data

    def gather_object(self, value: Any) -> Any:
        """Objects of all ranks: each rank brings something iterable, all are joined into one list. One rank: the argument itself."""
        if self.carrier.size == 1:
            return value
        self._agree("gather_object", "")
        return [item for part in self.carrier.exchange(value) for item in part]

    def broadcast_object_list(self, values: list[Any], source: int = 0) -> list[Any]:
        """Replace the items of `values` by those of rank `source`, in place, and return the list."""
        self._check_source(source)
        if self.carrier.size > 1:
            self._agree(f"broadcast_object_list from {source}", f"{len(values)} objects")
            values[:] = self.carrier.broadcast_object(values, source)
        return values

    def exchange(self, value: Any) -> list[Any]:
        """One picklable value of every rank, in the order of ranks."""
        if self.carrier.size > 1:
            self._agree("exchange", "")
        return self.carrier.exchange(value)

    def gather_mixed(self, data: Any, *, lists: bool) -> Any:
        """Tensors and other objects gathered leaf by leaf, with the structure kept.

        A list or tuple that holds neither tensors nor containers is one leaf, joined over the ranks; with `lists` every
        list is. Any other object that is not a tensor becomes the list of all ranks' values.
        """
        stop = structure.is_list if lists else structure.is_flat
        leaves = structure.leaves(data, stop)
        self._agree("gather objects", packing.describe_kinds(data, stop))
        results: list[Any] = list(leaves)
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        tensors = structure.tensor_leaves([leaves[place] for place in places], "gather objects")
        for place, whole in zip(places, self._gather_leaves(tensors), strict=True):
            results[place] = whole
        others = [place for place in range(len(leaves)) if not isinstance(leaves[place], torch.Tensor)]
        every = self.carrier.exchange([leaves[place] for place in others])
        for place, column in zip(others, zip(*every, strict=True), strict=True):
            results[place] = _join(leaves[place], column, stop)
        return structure.with_leaves(data, results, stop)

    def any(self, flag: bool) -> bool:
        """Whether any rank brings True."""
        if self.carrier.size == 1:
            return flag
        return any(row[0] for row in self._agree("check_trigger", "", numbers=[int(flag)]))

    def _check_source(self, source: int) -> None:
        if not 0 <= source < self.carrier.size:
            raise SettingError(
                f"from_process={source}: ranks are 0 to {self.carrier.size - 1}",
                hint="name a rank of this run",
            )

    def _agree(self, operation: str, data: Any, *, shapes: bool = True, numbers: Sequence[int] = ()) -> list[list[int]]:
        """Check that all ranks call `operation` with data of the same build; returns the `numbers` of every rank."""
        summary = data if isinstance(data, str) else packing.signature(data, shapes=shapes)
        digest = hashlib.blake2b(f"{operation}|{summary}".encode(), digest_size=8 * _DIGEST).digest()
        words = [int.from_bytes(digest[i : i + 8], "little", signed=True) for i in range(0, 8 * _DIGEST, 8)]
        inline = list(numbers[: _HEADER - _DIGEST])
        header = torch.tensor(words + inline + [0] * (_HEADER - _DIGEST - len(inline)), device=self._control)
        every = self.carrier.all_gather(header).tolist()
        if any(row[:_DIGEST] != words for row in every):
            self._refuse(operation, data)
        found = [row[_DIGEST : _DIGEST + len(inline)] for row in every]
        if len(numbers) > len(inline):
            rest = torch.tensor(numbers[len(inline) :], device=self._control)
            more = self.carrier.all_gather(rest).tolist()
            found = [first + last for first, last in zip(found, more, strict=True)]
        return found

    def _refuse(self, operation: str, data: Any) -> None:
        """Tell every rank what each of them holds. Never returns."""
        mine = f"{operation}: {data if isinstance(data, str) else structure.describe(data)}"
        shown = "\n".join(f"  rank {rank}: {text}" for rank, text in enumerate(self.carrier.exchange(mine)))
        raise DistributedOperationException(
            f"{operation}: the ranks do not agree; each must call the same operation on the same structure, shapes and types\n"
            f"{shown}",
            hint="pad_across_processes makes shapes equal; gather_object takes objects of any size",
        )


def _join(leaf: Any, column: Sequence[Any], stop: structure.Predicate) -> Any:
    """What all ranks have at one place: sequences joined, other objects listed."""
    if not stop(leaf):
        return list(column)
    joined = [item for part in column for item in part]
    return tuple(joined) if isinstance(leaf, tuple) else joined
