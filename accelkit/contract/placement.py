"""Which unit of a model goes where: pure arithmetic on names and sizes.

Units are what stays whole; they come in the order in which the model runs them. Rooms come in the order of preference. A unit
goes to the present room, or the rooms move on. Units that share a tensor go together, and the tensor counts once. A unit that
is larger than a room could ever hold does not use the room up for those that follow: it goes further on, alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from accelkit.contract.data import ordered_data

Place = int | str
_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def show(size: float) -> str:
    """A size as people read it: exact below a KiB, else with one decimal."""
    if size == float("inf"):
        return "no limit"
    for unit, factor in reversed(_UNITS.items()):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size:.0f} bytes"


@ordered_data
class Unit:
    """What is placed as a whole."""

    name: str
    tensors: Mapping[int, int]
    """Identity of each tensor in it -> bytes; a tensor that two units hold has one identity."""

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(self.tensors.values())


@ordered_data
class Room:
    """A place for tensors."""

    place: Place
    size: float
    """Bytes; infinite for a disk."""
    reserves: bool = False
    """Whether room is kept for the largest unit that is still to come, which may have to be brought in to run."""


@dataclass
class Solution:
    """Where every unit went."""

    places: dict[str, Place] = field(default_factory=dict)
    used: dict[Place, int] = field(default_factory=dict)
    """Bytes in each room."""
    notes: dict[str, str] = field(default_factory=dict)
    """Why a unit did not go to the room that was its turn, by unit."""

    def report(self, rooms: Sequence[Room]) -> str:
        """What each room holds, and why units were passed on."""
        lines = []
        for room in rooms:
            names = [name for name, place in self.places.items() if place == room.place]
            shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
            lines.append(f"{room.place}: {show(self.used[room.place])} of {show(room.size)}: {shown or 'nothing'}")
        return "\n".join([*lines, *(f"{name}: {note}" for name, note in self.notes.items())])


def solve(units: Sequence[Unit], rooms: Sequence[Room]) -> Solution:
    """Give every unit exactly one place. The last room must take whatever comes (a disk).

    Units without tensors go where their predecessor went.
    """
    search = _Search(list(tied_groups(units)), rooms)
    for index in range(len(search.groups)):
        search.place(index)
    places = {unit.name: search.chosen[index] for index, group in enumerate(search.groups) for unit in group}
    search.solution.places = {unit.name: places[unit.name] for unit in units}
    return search.solution


def tied_groups(units: Sequence[Unit]) -> Iterator[list[Unit]]:
    """Units that hold tensors in common, directly or through others, as one group; in the order of their first units."""
    leader = list(range(len(units)))

    def find(index: int) -> int:
        while leader[index] != index:
            leader[index] = leader[leader[index]]
            index = leader[index]
        return index

    owner: dict[int, int] = {}
    for index, unit in enumerate(units):
        for key in unit.tensors:
            first, second = sorted((find(owner.setdefault(key, index)), find(index)))
            leader[second] = first
    groups: dict[int, list[Unit]] = {}
    for index, unit in enumerate(units):
        groups.setdefault(find(index), []).append(unit)
    yield from groups.values()


class _Search:
    """The state of one pass over the groups."""

    def __init__(self, groups: list[list[Unit]], rooms: Sequence[Room]) -> None:
        self.groups = groups
        self.rooms = rooms
        self.solution = Solution(used={room.place: 0 for room in rooms})
        self.chosen: list[Place] = []
        self._sizes = [
            sum({key: size for unit in group for key, size in unit.tensors.items()}.values()) for group in groups
        ]
        self._largest_after = _largest_after([max(unit.size for unit in group) for group in groups])
        self._turn = 0

    def place(self, index: int) -> None:
        """Choose for the next group."""
        size = self._sizes[index]
        if size == 0 and index:
            self.chosen.append(self.chosen[-1])
            return
        target = self._turn
        while target < len(self.rooms) - 1 and size > self._free(target, index):
            target += 1
        while self._turn < target and self._could_hold(self._turn, size, index):
            self._turn += 1
        if target != self._turn or self._passed(target, index):
            self._note(index, size, target)
        room = self.rooms[target]
        self.solution.used[room.place] += size
        self.chosen.append(room.place)

    def _free(self, number: int, index: int) -> float:
        return self._capacity(number, index) - self.solution.used[self.rooms[number].place]

    def _could_hold(self, number: int, size: int, index: int) -> bool:
        """Whether the group would fit were the room empty: then the room is full, and its turn is over."""
        return size <= self._capacity(number, index)

    def _capacity(self, number: int, index: int) -> float:
        room = self.rooms[number]
        return room.size - (self._largest_after[index] if room.reserves else 0)

    def _passed(self, target: int, index: int) -> bool:
        return bool(index) and self.chosen[-1] != self.rooms[target].place

    def _note(self, index: int, size: int, target: int) -> None:
        reasons = []
        for number in range(target):
            room = self.rooms[number]
            free = max(0, room.size - self.solution.used[room.place])
            kept = (
                f", {show(self._largest_after[index])} of it kept for a layer that is brought in"
                if room.reserves
                else ""
            )
            reasons.append(f"{room.place} has {show(free)} free{kept}")
        name = self.groups[index][0].name
        if reasons:
            place = self.rooms[target].place
            self.solution.notes[name] = f"needs {show(size)} and goes to {place}: {'; '.join(reasons)}"


def _largest_after(sizes: Sequence[int]) -> list[int]:
    """For each position, the largest size that comes after it."""
    result, largest = [], 0
    for size in reversed(sizes):
        result.append(largest)
        largest = max(largest, size)
    return result[::-1]
