"""Frozen data classes: what `dataclasses.dataclass(frozen=True)` does, without its price."""

import copy
import dataclasses
import pickle
from dataclasses import field
from typing import Any

import pytest

from accelkit.contract.data import data, ordered_data


@data
class Named:
    """By keyword."""

    one: int
    many: tuple[int, ...] = ()
    table: dict[str, int] = field(default_factory=dict, compare=False, hash=False)


@ordered_data
class Ordered:
    """By position."""

    one: int
    two: str = "b"


@data
class Longer(Named):
    """Fields of its own after those of its base."""

    name: str = "long"


@dataclasses.dataclass(frozen=True)
class Model:
    """The oracle."""

    one: int
    two: str = "b"


@pytest.mark.parametrize(("args", "given"), [((1,), {}), ((1, "x"), {}), ((), {"one": 1}), ((1,), {"two": "y"})])
def test_it_is_made_shown_compared_and_hashed_as_a_dataclass(args: tuple[Any, ...], given: dict[str, Any]) -> None:
    """Every way to give two fields."""
    ours, theirs = Ordered(*args, **given), Model(*args, **given)

    assert repr(ours) == repr(theirs).replace("Model", "Ordered")
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert ours == Ordered(*args, **given) != dataclasses.replace(ours, one=2)
    assert ours != theirs
    assert hash(ours) == hash(Ordered(*args, **given)) == hash(theirs)
    assert pickle.loads(pickle.dumps(ours)) == copy.deepcopy(ours) == ours


@pytest.mark.parametrize(
    ("args", "given"), [((), {}), ((1, "b", 3), {}), ((1,), {"one": 1}), ((1,), {"three": 3}), ((), {"two": "b"})]
)
def test_what_does_not_fit_is_refused_as_by_a_dataclass(args: tuple[Any, ...], given: dict[str, Any]) -> None:
    """Missing, too many, twice, unknown: TypeError, which names the class."""
    for kind in (Ordered, Model):
        with pytest.raises(TypeError, match=kind.__name__):
            kind(*args, **given)


def test_by_keyword_means_by_keyword_alone() -> None:
    """No value goes to a field by its place, in a subclass neither."""
    with pytest.raises(TypeError, match="by position"):
        Named(1)  # type: ignore[misc]
    made = Longer(one=1, name="n")
    assert [entry.name for entry in dataclasses.fields(made)] == ["one", "many", "table", "name"]
    assert dataclasses.replace(made, one=2) == Longer(one=2, name="n")
    assert made != Named(one=1)


def test_fields_do_not_share_a_default_and_compare_as_they_say() -> None:
    """A factory makes one for each; `compare=False` leaves a field out of equality and hash."""
    first, second = Named(one=1), Named(one=1, table={"a": 1})
    assert first.table == Named(one=1).table == {}
    assert first.table is not Named(one=1).table
    assert first == second
    assert hash(first) == hash(second)


def test_an_instance_never_changes() -> None:
    """Setting, adding and deleting an attribute."""
    made = Ordered(1)
    with pytest.raises(dataclasses.FrozenInstanceError, match=r"Ordered\.one"):
        made.one = 2  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError, match=r"Ordered\.three"):
        made.three = 2  # type: ignore[attr-defined]
    with pytest.raises(dataclasses.FrozenInstanceError, match=r"Ordered\.two"):
        del made.two  # type: ignore[misc]
    assert made == Ordered(1)
