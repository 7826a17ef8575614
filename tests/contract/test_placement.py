"""The solver: exhaustively over small trees and rooms."""

import itertools

import pytest

from accelkit.contract.placement import Room, Unit, solve, tied_groups

SIZES = (0, 1, 3, 8)
LIMITS = (1, 4, 9)


def rooms(limits: tuple[int, ...]) -> list[Room]:
    """Accelerators and a CPU of these sizes, then the disk."""
    names = [*range(len(limits) - 1), "cpu"]
    main = {names[0], "cpu"}
    return [
        *(Room(name, size, name in main) for name, size in zip(names, limits, strict=True)),
        Room("disk", float("inf")),
    ]


def check(units: list[Unit], given: list[Room]) -> None:
    """What holds for every solution."""
    solution = solve(units, given)
    sizes = {key: size for unit in units for key, size in unit.tensors.items()}
    places: dict[int, set[object]] = {}
    for unit in units:
        for key in unit.tensors:
            places.setdefault(key, set()).add(solution.places[unit.name])
    assert set(solution.places) == {unit.name for unit in units}
    assert all(len(found) == 1 for found in places.values()), "a tensor has two places"
    used = {room.place: sum(sizes[key] for key, found in places.items() if found == {room.place}) for room in given}
    assert used == solution.used
    assert all(used[room.place] <= room.size for room in given), "a device is overfull"
    largest = max((unit.size for unit in units), default=0)
    for unit in units:
        if solution.places[unit.name] == "disk" and unit.size:
            group = next(group for group in tied_groups(units) if unit in group)
            needed = sum({key: sizes[key] for member in group for key in member.tensors}.values())
            free = [room.size - used[room.place] - (largest if room.reserves else 0) for room in given[:-1]]
            passed = [room for room, left in zip(given, free, strict=False) if left >= needed]
            assert not passed or max(given.index(room) for room in passed) < len(given) - 2, (
                "room on the CPU was wasted"
            )


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_tensor_has_one_place_and_no_device_is_overfull(count: int) -> None:
    """All sizes of up to four units, in all rooms of up to two accelerators and a CPU."""
    for sizes in itertools.product(SIZES, repeat=count):
        units = [Unit(f"u{index}", {index: size}) for index, size in enumerate(sizes)]
        for limits in itertools.chain(*(itertools.product(LIMITS, repeat=length) for length in (1, 2, 3))):
            check(units, rooms(limits))


def test_tied_units_go_together_and_count_once() -> None:
    """All ways in which three units hold up to three tensors in common."""
    for held in itertools.product(range(1, 8), repeat=3):
        units = [
            Unit(f"u{index}", {bit: bit + 2 for bit in range(3) if bits >> bit & 1}) for index, bits in enumerate(held)
        ]
        for limits in itertools.product((3, 6, 12), repeat=2):
            check(units, rooms(limits))


def test_the_largest_unit_to_come_is_kept_free_on_main_devices() -> None:
    """An accelerator takes a unit of 4 only if the larger one that follows (6) would fit beside it: 10 do, 9 do not."""
    units = [Unit("a", {0: 4}), Unit("b", {1: 6}), Unit("c", {2: 1})]

    assert solve(units, rooms((10, 5))).places == {"a": 0, "b": "disk", "c": "cpu"}
    assert solve(units, rooms((9, 5))).places == {"a": "disk", "b": 0, "c": 0}


def test_a_unit_too_large_for_a_device_does_not_use_it_up() -> None:
    """A huge unit passes two small devices; those that follow it still go there, and the report says what lacked."""
    units = [Unit("huge", {0: 100}), *(Unit(f"u{index}", {index + 1: 2}) for index in range(4))]
    given = [Room(0, 7, True), Room(1, 5), Room("cpu", 200, True), Room("disk", float("inf"))]
    solution = solve(units, given)

    assert solution.places == {"huge": "cpu", "u0": 0, "u1": 0, "u2": 1, "u3": 1}
    assert "huge: needs 100 bytes and goes to cpu: 0 has 7 bytes free" in solution.report(given)


def test_a_unit_without_tensors_follows_its_predecessor() -> None:
    """An activation function is where the layer before it is."""
    units = [Unit("a", {0: 9}), Unit("relu", {}), Unit("b", {1: 1})]

    assert solve(units, rooms((3, 2))).places == {"a": "disk", "relu": "disk", "b": 0}
