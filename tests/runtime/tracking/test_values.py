"""What scripts hand to trackers, made plain."""

import argparse
import dataclasses
import datetime as dt
import enum
import math
import pathlib
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch

from accelkit import SettingError
from accelkit.runtime.tracking.values import flat, flat_config, nested_config, number, step_number


class Color(enum.Enum):
    """An enumeration of a script's."""

    RED = "red"


@dataclasses.dataclass
class Settings:
    """A dataclass of a script's."""

    rate: float = 0.1
    sizes: tuple[int, ...] = (1, 2)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (torch.tensor(2.5), 2.5),
        (torch.tensor([[3]]), 3),
        (torch.tensor(True), True),
        (np.float32(0.5), 0.5),
        (np.array([4]), 4),
        (1, 1),
        ("x", "x"),
        (None, None),
    ],
)
def test_one_element_is_a_number(value: Any, plain: Any) -> None:
    """Tensors, arrays and numpy scalars of one element become plain numbers; other values stay."""
    found = number(value)

    assert found == plain
    assert type(found) is type(plain)


@pytest.mark.parametrize("step", [5, 5.0, np.int64(5), torch.tensor(5)])
def test_a_step_of_any_kind_is_a_whole_number(step: Any) -> None:
    """What counts steps in scripts; a part of one, a text or no number is refused."""
    assert type(step_number(step)) is int
    assert step_number(step) == 5
    for wrong in (step + 0.5, "5", float("nan")):
        with pytest.raises(SettingError, match="is no whole number"):
            step_number(wrong)
    assert step_number(None) is None


def test_more_than_one_element_stays() -> None:
    """A tensor or array of several elements is for the tracker to take or refuse."""
    for value in (torch.ones(2), np.ones(2), [1], {"a": 1}):
        assert number(value) is value


def test_flat_names() -> None:
    """Keys of any depth are joined by `/`; empty mappings hold nothing; names that meet are refused."""
    assert flat({"a": {"b": {"c": 1}, "d": 2}, "e": {}, 3: 4}) == {"a/b/c": 1, "a/d": 2, "3": 4}
    with pytest.raises(SettingError, match="two values are called 'a/b'"):
        flat({"a": {"b": 1}, "a/b": 2})


GIVEN = OrderedDict(
    rate=1e-3,
    on=True,
    nothing=None,
    text="x",
    path=pathlib.PurePosixPath("a/b"),
    dtype=torch.bfloat16,
    device=torch.device("cpu"),
    color=Color.RED,
    when=dt.timedelta(seconds=5),
    function=math.sqrt,
    kind=Settings,
    settings=Settings(),
    args=argparse.Namespace(a=1, b=[{"c": 2}]),
    several={"b", "a"},
    tensor=torch.tensor(2),
)
EXPECTED: dict[str, Any] = {
    "rate": 1e-3,
    "on": True,
    "nothing": None,
    "text": "x",
    "path": "a/b",
    "dtype": "torch.bfloat16",
    "device": "cpu",
    "color": "red",
    "when": "0:00:05",
    "function": "math.sqrt",
    "kind": f"{__name__}.Settings",
    "settings": {"rate": 0.1, "sizes": [1, 2]},
    "args": {"a": 1, "b": [{"c": 2}]},
    "several": ["a", "b"],
    "tensor": 2,
}


def test_a_configuration_of_any_kind() -> None:
    """Mappings, dataclasses and namespaces of any depth; types that scripts have in their settings."""
    assert nested_config(GIVEN) == EXPECTED
    assert nested_config(argparse.Namespace(**GIVEN)) == EXPECTED
    assert nested_config(Settings()) == EXPECTED["settings"]
    plain = flat_config(GIVEN)
    assert plain["nothing"] == "None"
    assert plain["settings/sizes"] == "[1, 2]"
    assert plain["args/b"] == '[{"c": 2}]'


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"a": {"b": [1, object()]}}, r"config\['a'\]\['b'\]\[1\] is of type object"),
        ({"w": torch.ones(2)}, r"config\['w'\] is of type Tensor"),
        ({1: 1, "1": 2}, "config has two keys that read '1'"),
        ([1, 2], "config is of type list"),
        (3, "config is of type int"),
    ],
)
def test_a_configuration_that_cannot_be_shown(config: Any, said: str) -> None:
    """The error names the place in the configuration and the type."""
    with pytest.raises(SettingError, match=said):
        nested_config(config)
