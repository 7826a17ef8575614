"""split_between_processes: for all small lengths and worlds, the parts of all ranks joined are the whole, in order and of its type."""

from collections import OrderedDict
from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from accelkit.runtime.errors import SettingError
from accelkit.runtime.processes import split


class Table:
    """A data set of which rows are selected, as those of the package datasets are."""

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, indices: list[int]) -> "Table":
        """The rows at these places."""
        return Table([self.rows[index] for index in indices])


class Names(list[int]):
    """A list with a class of its own."""


class Pair(NamedTuple):
    """One value with two fields: nothing to divide."""

    x: int
    y: int


KINDS: dict[str, tuple[Callable[[list[int]], Any], Callable[[Any], list[int]]]] = {
    "list": (list, list),
    "subclass": (Names, list),
    "tuple": (tuple, list),
    "tensor": (torch.tensor, lambda part: part.tolist()),
    "rows": (lambda rows: torch.tensor(rows).view(-1, 1).expand(-1, 2), lambda part: part[:, 1].tolist()),
    "array": (lambda rows: np.array(rows, dtype=int), lambda part: part.tolist()),
    "table": (Table, lambda part: part.rows),
    "dict": (lambda rows: {"a": rows, "b": (*rows,)}, lambda part: part["a"] if tuple(part["a"]) == part["b"] else []),
    "ordered dict": (lambda rows: OrderedDict(b=torch.tensor(rows)), lambda part: part["b"].tolist()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_parts_joined_are_the_whole(kind: str) -> None:
    """The first ranks have one more; what is given is not changed; padding repeats the last item, and only where it is needed."""
    make, listed = KINDS[kind]
    for length, size, padding in product(range(9), range(1, 6), (False, True)):
        rows = list(range(length))
        whole = make(rows)
        parts = [split(whole, rank, size, apply_padding=padding) for rank in range(size)]
        found = [listed(part) for part in parts]
        wanted = [length // size + (rank < length % size) for rank in range(size)]
        assert [item for part, count in zip(found, wanted, strict=True) for item in part[:count]] == rows
        assert [item for part, count in zip(found, wanted, strict=True) for item in part[count:] if not padding] == []
        if padding:
            assert {len(part) for part in found} == {-(-length // size)}
            assert {item for part, count in zip(found, wanted, strict=True) for item in part[count:]} <= {length - 1}
        assert {type(part) for part in parts} == {type(whole)}
        assert listed(whole) == rows


@pytest.mark.parametrize("value", [3, None, "text", Pair(1, 2), torch.tensor(1), np.array(1)])
def test_what_has_no_order_of_items_is_given_whole(value: Any) -> None:
    """Every rank has the very object."""
    assert all(split(value, rank, 3) is value for rank in range(3))


def test_values_of_a_dict_must_be_of_equal_length() -> None:
    """Else it is said which have which."""
    with pytest.raises(ValueError, match=r"'a': 1, 'b': 2"):
        split({"a": [1], "b": [1, 2]}, 0, 2)


def test_a_range_is_divided_as_a_list_is() -> None:
    """Parts are ranges, or lists where something had to be repeated."""
    for length, size, padding in product(range(9), range(2, 6), (False, True)):
        for rank in range(size):
            part = split(range(length), rank, size, apply_padding=padding)
            assert list(part) == split(list(range(length)), rank, size, apply_padding=padding)
            assert padding or type(part) is range


def test_sets_are_refused_by_name() -> None:
    """They have no order, so that ranks would not agree on whose part is whose."""
    for value in ({1, 2}, {"a": frozenset([1])}):
        with pytest.raises(SettingError, match="has no order"):
            split(value, 0, 2)
