"""From what a model consists of to what it needs: pure arithmetic."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from accelkit.contract import anatomy as anatomies
from accelkit.contract.anatomy import Anatomy, TensorPart
from accelkit.contract.data import data
from accelkit.contract.placement import Place, Room, Solution, Unit, solve
from accelkit.host.errors import UsageError

STORED: Final = "stored"
"""The dtype of a row in which every tensor keeps its own."""
BITS: Final = {"float32": 32, "float16": 16, "bfloat16": 16, "float8": 8, "int8": 8, "int4": 4}
DTYPES: Final = (STORED, *BITS)
SHOWN: Final = (STORED, "float32", "bfloat16", "int8", "int4")
"""The rows when nobody asks for others."""
_ACTIVATIONS: Final = 0.2
"""What inference takes beside the weights, as a share of them: activations, caches, fragments. A rule of thumb."""


@data
class Needs:
    """Bytes that a model needs in one dtype."""

    dtype: str
    weights: int
    """Parameters and buffers."""
    largest_layer: str
    largest_layer_bytes: int
    inference: int
    """Weights and a fifth more."""
    training: int | None
    """With Adam, without activations: weights, gradients and two moments in float32, and for a half type the copies in it that
    the forward computes with. None for types that are not trained in."""


@data
class Share:
    """What one device holds."""

    device: Place
    limit: int | None
    """Bytes; None: no limit (the disk)."""
    used: int
    kept_free: int
    """Bytes kept for a layer that is brought in to run."""
    units: tuple[tuple[str, int], ...]
    """(layer, bytes) in order; a tensor that several layers hold counts in the first."""


def loaded_bytes(part: TensorPart, dtype: str) -> int:
    """Bytes of a tensor once loaded: floating ones in `dtype`, others as they are stored."""
    if dtype == STORED or not part.is_floating:
        return part.bytes
    return math.ceil(part.count * BITS[dtype] / 8)


def needs(anatomy: Anatomy, dtype: str) -> Needs:
    """What a model needs in a dtype. Raises UsageError for one that is not known."""
    check_dtype(dtype)
    sizes = [loaded_bytes(part, dtype) for part in anatomy.tensors]
    layers = anatomies.units(anatomy, sizes)
    largest = max(layers, key=lambda unit: unit.size)
    weights = sum(sizes)
    return Needs(
        dtype=dtype,
        weights=weights,
        largest_layer=largest.name,
        largest_layer_bytes=largest.size,
        inference=math.ceil(weights * (1 + _ACTIVATIONS)),
        training=_training(anatomy, dtype),
    )


def check_dtype(dtype: str) -> None:
    """Raises UsageError for a dtype that has no row."""
    if dtype not in DTYPES:
        raise UsageError(f"--dtype {dtype}: must be one of {', '.join(DTYPES)}")


def _training(anatomy: Anatomy, dtype: str) -> int | None:
    wide = dtype if dtype != STORED else _main_dtype(anatomy)
    if BITS.get(wide, 0) < 16:
        return None
    trained = sum(part.count for part in anatomy.tensors if part.is_trained and part.is_floating)
    rest = sum(part.bytes for part in anatomy.tensors if not (part.is_trained and part.is_floating))
    return trained * (4 * 4 + (2 if BITS[wide] == 16 else 0)) + rest


def _main_dtype(anatomy: Anatomy) -> str:
    """The dtype of most values."""
    counts: dict[str, int] = {}
    for part in anatomy.tensors:
        counts[part.dtype] = counts.get(part.dtype, 0) + part.count
    return max(counts, key=lambda dtype: counts[dtype])


def spread(anatomy: Anatomy, dtype: str, limits: Mapping[Place, int]) -> tuple[list[Share], Solution]:
    """Which device holds what: accelerators in order, then the CPU, then the disk; as the runtime decides it.

    `limits` are bytes by index of an accelerator, and "cpu". Returns what each device holds, and the solution with its reasons.
    """
    accelerators = sorted(key for key, size in limits.items() if isinstance(key, int) and size > 0)
    main = {accelerators[0] if accelerators else "cpu", "cpu"}
    order: list[Place] = [*accelerators, *(["cpu"] if limits.get("cpu") else [])]
    rooms = [Room(place, limits[place], place in main) for place in order]
    rooms.append(Room("disk", float("inf")))
    units = anatomies.units(anatomy, [loaded_bytes(part, dtype) for part in anatomy.tensors])
    solution = solve(units, rooms)
    return [_share(room, units, solution) for room in rooms], solution


def _share(room: Room, units: Sequence[Unit], solution: Solution) -> Share:
    here = [unit for unit in units if solution.places[unit.name] == room.place]
    elsewhere = [unit.size for unit in units if solution.places[unit.name] != room.place]
    used, limited = solution.used[room.place], room.size != float("inf")
    free = int(room.size) - used if limited else 0
    return Share(
        device=room.place,
        limit=int(room.size) if limited else None,
        used=used,
        kept_free=min(free, max(elsewhere, default=0)) if room.reserves else 0,
        units=tuple(_counted_once(here)),
    )


def _counted_once(units: Sequence[Unit]) -> Iterator[tuple[str, int]]:
    """(layer, bytes); what several layers hold counts in the first."""
    seen: set[int] = set()
    for unit in units:
        yield unit.name, sum(size for key, size in unit.tensors.items() if key not in seen)
        seen.update(unit.tensors)
