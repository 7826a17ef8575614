"""Operations on nested structures of tensors and objects, over any carrier.

Each operation begins with one exchange of frames (see `frames`): what the ranks must have in common, and, where it is small or
the ranks share memory, the data itself. When they do not agree, every rank raises an error that shows what each holds; nothing
is sent that could hang or interleave. Larger data follows in one buffer per device, whatever the number of leaves.
"""

import pickle
from collections.abc import Sequence
from typing import Any, Final

import torch

from accelkit.runtime import structure
from accelkit.runtime.collectives import frames, packing
from accelkit.runtime.collectives.base import Collectives
from accelkit.runtime.collectives.channel import NO_CARGO, Cargo, Channel
from accelkit.runtime.collectives.handout import Handout
from accelkit.runtime.collectives.watch import Watch
from accelkit.runtime.errors import DistributedOperationException, SettingError, UnsupportedError

REDUCTIONS: Final = ("sum", "mean", "max")


class NestedCollectives:
    """Structure-wise operations of one rank. All ranks call the same ones in the same order."""

    def __init__(
        self, carrier: Collectives, control: torch.device, watch: Watch | None = None, limit: float = 1800.0
    ) -> None:
        """Prepare; nothing is sent yet.

        Args: `control`, the device on which the carrier moves frames; `watch`, who says which ranks are missing; `limit`, the
        seconds that an exchange may take between ranks of one machine (the carrier has its own).
        """
        self.carrier = carrier
        self.watch = watch
        self._channel = Channel(carrier, control, watch, limit)

    @property
    def handout(self) -> Handout:
        """What carries bare bytes from rank 0 to the others."""
        return Handout(self.carrier, self._channel.control)

    def lengths(self, operation: str, number: int) -> list[int]:
        """A whole number of every rank, exchanged with the header of an operation."""
        return [numbers[0] for numbers in self._agree(operation, numbers=[number])]

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        if self.carrier.size > 1:
            self._agree("wait_for_everyone")

    def any(self, flag: bool) -> bool:
        """Whether any rank brings True."""
        if self.carrier.size == 1:
            return flag
        return any(row[0] for row in self._agree("check_trigger", numbers=[int(flag)]))

    def gather(self, data: Any) -> Any:
        """Tensors of all ranks joined along their first dimension, in the order of ranks; a 0-d tensor becomes one of `size`.

        All ranks must hold the same structure, shapes and types. Raises DistributedOperationException on every rank when
        they do not, and TypeError for leaves that are not tensors. One rank: the argument itself.
        """
        if self.carrier.size == 1:
            return data
        pairs = structure.flatten(data)
        leaves = [leaf for _, leaf in pairs]
        cargo, places = _cargo_of(leaves)
        self._agree("gather", data, packing.signature(pairs), cargo=cargo)
        structure.require_tensors(pairs, "gather")
        gathered = self._gather_leaves(leaves, cargo, places)
        return gathered[0] if leaves and data is leaves[0] else structure.with_leaves(data, gathered)

    def _gather_leaves(self, leaves: Sequence[torch.Tensor], cargo: Cargo, places: Sequence[int]) -> list[torch.Tensor]:
        """Each leaf joined over the ranks; `cargo` holds those at `places`, and was shown already."""
        gathered = list(leaves)
        with torch.no_grad():
            if places:
                here = [leaves[place] for place in places]
                for place, whole in zip(places, packing.unpack(self._channel.collect(cargo), here), strict=True):
                    gathered[place] = whole
            for others in packing.by_device(leaves) if len(places) < len(leaves) else ():
                if leaves[others[0]].device.type == "cpu":
                    continue
                here = [leaves[place] for place in others]
                rows = self.carrier.all_gather(packing.pack(here))
                for place, whole in zip(others, packing.unpack(rows, here), strict=True):
                    gathered[place] = whole
        return gathered

    def pad(self, data: Any, dim: int = 0, pad_index: float = 0, pad_first: bool = False) -> Any:
        """Tensors padded along `dim` to the largest size that any rank has there; their types stay.

        A tensor without that dimension is left alone. One rank: the argument itself.
        """
        if self.carrier.size == 1:
            return data
        pairs = structure.flatten(data)
        leaves = [leaf for _, leaf in pairs]
        sizes = [packing.size_at(leaf, dim) for leaf in leaves]
        summary = packing.signature(pairs, shapes=False)
        every = self._agree("pad_across_processes", data, summary, numbers=sizes)
        structure.require_tensors(pairs, "pad_across_processes")
        wanted = [max(column) for column in zip(*every, strict=True)]
        padded = [
            leaf if have in (-1, want) else packing.pad(leaf, dim, want, pad_index, first=pad_first)
            for leaf, have, want in zip(leaves, sizes, wanted, strict=True)
        ]
        return structure.with_leaves(data, padded)

    def reduce(self, data: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Tensors reduced over all ranks ("sum", "mean", "max") and multiplied by `scale`; always new tensors.

        A mean of whole numbers is a float; sums of booleans count; all else keeps its type. Raises SettingError for the largest of
        complex numbers.
        """
        if reduction not in REDUCTIONS:
            raise SettingError(f"reduction={reduction!r}: must be one of {', '.join(REDUCTIONS)}")
        pairs = structure.flatten(data)
        leaves = [leaf for _, leaf in pairs]
        ready = structure.are_plain(leaves)
        work = [packing.for_reduction(leaf, reduction) for leaf in leaves] if ready else []
        if self.carrier.size > 1:
            cargo, places = _cargo_of(work, most=frames.room(0))
            self._agree(f"reduce {reduction}", data, packing.signature(pairs), cargo=cargo)
        structure.require_tensors(pairs, "reduce")
        if reduction == "max" and any(leaf.is_complex() for leaf in leaves):
            raise SettingError("reduction='max': complex numbers have no order", hint="reduce abs() or real instead")
        if self.carrier.size > 1:
            self._reduce_leaves(work, places, reduction)
        size = self.carrier.size
        return structure.with_leaves(
            data,
            [packing.reduced(w, leaf, reduction, size, scale) for w, leaf in zip(work, leaves, strict=True)],
        )

    def _reduce_leaves(self, work: list[torch.Tensor], places: Sequence[int], reduction: str) -> None:
        """Replace each tensor by the reduction: those at `places`, which every rank has seen, here; the others by the carrier."""
        with torch.no_grad():
            if places:
                here = [work[place] for place in places]
                rows = self._channel.all.columns(self._channel.headers[0])
                parts = zip(*(packing.unpack_one(row, here) for row in rows), strict=True)
                for place, column in zip(places, parts, strict=True):
                    work[place] = packing.combine(column, reduction)
            rest = [place for place in range(len(work)) if place not in places]
            for group in packing.by_device_and_type([work[place] for place in rest]):
                chosen = [rest[index] for index in group]
                flat = packing.flatten([work[place] for place in chosen])
                self._all_reduce(flat, reduction)
                for place, part in zip(chosen, packing.unflatten(flat, [work[p] for p in chosen]), strict=True):
                    work[place] = part

    def _all_reduce(self, flat: torch.Tensor, reduction: str) -> None:
        """By the carrier, in place. The largest of numbers and no number is no number, which backends see differently."""
        if reduction != "max":
            self.carrier.all_reduce(flat, "sum")
            return
        none = flat.isnan().to(torch.uint8) if flat.is_floating_point() else None
        self.carrier.all_reduce(flat, "max")
        if none is not None:
            self.carrier.all_reduce(none, "max")
            flat[none.bool()] = torch.nan

    def broadcast(self, data: Any, source: int = 0) -> Any:
        """Fill the tensors of every rank with those of rank `source`, in place, and return the structure.

        Raises UnsupportedError on every rank when a rank holds a tensor that cannot be filled.
        """
        self._check_source(source)
        if self.carrier.size == 1:
            return data
        pairs = structure.flatten(data)
        leaves = [leaf for _, leaf in pairs]
        cargo, places = _cargo_of(leaves)
        sent = cargo if self.carrier.rank == source else NO_CARGO
        fixed = -1 if self.carrier.rank == source else packing.find_fixed(leaves)
        found_fixed = self._agree(
            f"broadcast from {source}", data, packing.signature(pairs), numbers=[fixed], cargo=sent
        )
        structure.require_tensors(pairs, "broadcast")
        _refuse_fixed(pairs, [places[0] for places in found_fixed])
        with torch.no_grad():
            for group in packing.by_device(leaves):
                here = [leaves[place] for place in group]
                found = self._channel.seen(source) if group == places else None
                if found is None:
                    buffer = packing.pack(here)
                    found = buffer.clone() if len(here) == 1 else buffer
                    self.carrier.broadcast(found, source)
                if self.carrier.rank != source:
                    for leaf, values in zip(here, packing.unpack_one(found, here), strict=True):
                        leaf.copy_(values)
        return data

    def gather_object(self, value: Any) -> Any:
        """Objects of all ranks: each rank brings something iterable, all are joined into one list. One rank: the argument itself."""
        if self.carrier.size == 1:
            return value
        return [item for part in self._exchange("gather_object", value) for item in part]

    def broadcast_object_list(self, values: list[Any], source: int = 0) -> list[Any]:
        """Replace the items of `values` by those of rank `source`, in place, and return the list."""
        self._check_source(source)
        if self.carrier.size > 1:
            is_source = self.carrier.rank == source
            cargo = _cargo_of_object(values) if is_source else NO_CARGO
            what = f"{len(values)} objects"
            self._agree(f"broadcast_object_list from {source}", what, what, cargo=cargo)
            sent = self._channel.seen(source)
            if sent is None:
                size = self._channel.headers[source].size
                sent = cargo.flat() if is_source else torch.empty(size, dtype=torch.uint8)
                sent = sent.to(self._channel.control)
                self.carrier.broadcast(sent, source)
            if not is_source:
                values[:] = _object_from(sent)
        return values

    def exchange(self, value: Any) -> list[Any]:
        """One picklable value of every rank, in the order of ranks."""
        return [value] if self.carrier.size == 1 else self._exchange("exchange", value)

    def _exchange(self, operation: str, value: Any) -> list[Any]:
        cargo = _cargo_of_object(value)
        self._agree(operation, cargo=cargo)
        parts = self._channel.collect(cargo)
        return [value if rank == self.carrier.rank else _object_from(part) for rank, part in enumerate(parts)]

    def gather_mixed(self, data: Any, *, lists: bool) -> Any:
        """Tensors and other objects gathered leaf by leaf, with the structure kept.

        A list or tuple of samples (`structure.is_samples`) is one leaf, joined over the ranks; with `lists` every list is. Any
        other object that is not a tensor becomes the list of all ranks' values.
        """
        stop = structure.is_list if lists else structure.is_samples
        pairs = structure.flatten(data, stop)
        leaves = [leaf for _, leaf in pairs]
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        cargo, held = _cargo_of([leaves[place] for place in places])
        self._agree("gather objects", data, packing.signature_of_kinds(pairs, stop), cargo=cargo)
        results: list[Any] = list(leaves)
        tensors = structure.tensor_leaves([leaves[place] for place in places], "gather objects")
        for place, whole in zip(places, self._gather_leaves(tensors, cargo, held), strict=True):
            results[place] = whole
        others = [place for place in range(len(leaves)) if not isinstance(leaves[place], torch.Tensor)]
        every = self._exchange("gather objects", [leaves[place] for place in others]) if others else []
        for place, column in zip(others, zip(*every, strict=True), strict=True):
            results[place] = _join(leaves[place], column, stop)
        return structure.with_leaves(data, results, stop)

    def _check_source(self, source: int) -> None:
        if not 0 <= source < self.carrier.size:
            raise SettingError(
                f"from_process={source}: ranks are 0 to {self.carrier.size - 1}",
                hint="name a rank of this run",
            )

    def _agree(
        self,
        operation: str,
        data: Any = "",
        summary: str = "",
        *,
        numbers: Sequence[int] = (),
        cargo: Cargo = NO_CARGO,
    ) -> list[list[int]]:
        """Check that all ranks call `operation` with the same `summary` of `data`, and show `cargo`; returns every rank's `numbers`."""
        first, rest = numbers[: frames.MOST_NUMBERS], numbers[frames.MOST_NUMBERS :]
        channel = self._channel
        if not channel.meet(operation, frames.digest(f"{operation}|{summary}"), first, cargo):
            self._refuse(operation, data)
        if not numbers:
            return []
        found = [channel.all.numbers(rank, header) for rank, header in enumerate(channel.headers)]
        if rest:
            more = self._exchange(operation, rest)
            found = [start + end for start, end in zip(found, more, strict=True)]
        return found

    def _refuse(self, operation: str, data: Any) -> None:
        """Tell every rank what each of them holds. Never returns."""
        mine = f"{operation}: {data if isinstance(data, str) else structure.describe(data)}"
        form = data if isinstance(data, str) else packing.signature(structure.flatten(data), shapes=False)
        every = self._exchange("compare", (mine, operation, form))
        shown = "\n".join(f"  rank {rank}: {text}" for rank, (text, _, _) in enumerate(every))
        raise DistributedOperationException(
            f"{operation}: the ranks do not agree; each must call the same operation on the same structure, shapes and types\n"
            f"{shown}",
            hint=_way_out({called for _, called, _ in every}, {form for _, _, form in every}),
        )


def _way_out(operations: set[str], forms: set[str]) -> str:
    """What to do about ranks that called these operations, on data of these forms without their sizes."""
    if len(operations) > 1:
        return "let every rank call the same operations in the same order, also where it has nothing to bring"
    if len(forms) > 1:
        return (
            "bring the same structure, types and numbers of dimensions on every rank; gather_object takes any objects"
        )
    return "pad_across_processes makes shapes equal; gather_object takes objects of any size"


def _refuse_fixed(pairs: Sequence[tuple[str, Any]], fixed: Sequence[int]) -> None:
    """Raise UnsupportedError where a rank says the place of a tensor that cannot be filled; -1: it has none."""
    for rank, place in enumerate(fixed):
        if place >= 0:
            raise UnsupportedError(
                f"broadcast: {pairs[place][0] or 'the argument'} of rank {rank} cannot be filled: elements of it share memory, as after "
                "expand(), or it was made in inference mode",
                hint="give a clone() of it",
            )


def _cargo_of(leaves: Sequence[Any], most: int | None = None) -> tuple[Cargo, list[int]]:
    """The tensors on the CPU, and their places; nothing where a leaf cannot be sent, or (with `most`) they take more bytes."""
    if not structure.are_plain(leaves):
        return NO_CARGO, []
    places = [place for place, leaf in enumerate(leaves) if leaf.device.type == "cpu"]
    here = [leaves[place] for place in places]
    size = packing.packed_size(here)
    if most is not None and size > most:
        return NO_CARGO, []
    return Cargo(size, lambda buffer: packing.pack_into(buffer, here), lambda: packing.pack(here)), places


def _cargo_of_object(value: Any) -> Cargo:
    flat = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
    return Cargo(flat.numel(), lambda buffer: buffer.copy_(flat), lambda: flat)


def _object_from(part: torch.Tensor) -> Any:
    memory = bytearray(part.numel())
    torch.frombuffer(memory, dtype=torch.uint8).copy_(part)
    return pickle.loads(memory)  # noqa: S301  (what ranks of one run send each other)


def _join(leaf: Any, column: Sequence[Any], stop: structure.Predicate) -> Any:
    """What all ranks have at one place: sequences joined, other objects listed."""
    if not stop(leaf):
        return list(column)
    joined = [item for part in column for item in part]
    return tuple(joined) if isinstance(leaf, tuple) else joined
