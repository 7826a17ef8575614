"""A batch as bytes and back: every type, shape and structure, with layouts sent only when they change."""

import collections
import dataclasses
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch

from accelkit.runtime.data import wire
from accelkit.runtime.data.shard import Tail

DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.bool,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.float8_e4m3fn,
)  # fmt: skip
SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (1,), (3,), (2, 3), (0, 3), (2, 0), (2, 1, 3))


class Pair(NamedTuple):
    """A named tuple."""

    x: Any
    y: Any


@dataclasses.dataclass(frozen=True)
class Record:
    """A frozen dataclass."""

    x: Any
    name: str


def transfer(batches: list[Any], tails: list[Tail | None] | None = None) -> tuple[list[Any], list[int]]:
    """The batches as the other side gets them, one after the other, and how long each layout was."""
    encoder, decoder = wire.Encoder(), wire.Decoder()
    found, layouts = [], []
    for batch, tail in zip(batches, tails or [None] * len(batches), strict=True):
        row = encoder.encode(batch, tail)
        written = torch.empty(row.size + 32, dtype=torch.uint8)  # rows are as long as the longest rank's
        row.write(written)
        written[:8].view(torch.int64)[0] = 77
        following, kind, value, told = decoder.decode(written)
        assert (following, kind, told) == (77, wire.BATCH, tail)
        found.append(value)
        layouts.append(len(row.layout))
    return found, layouts


def test_tensors_of_every_type_and_shape_arrive_bit_for_bit() -> None:
    """Also those that are empty, without dimensions, transposed, conjugated or part of another one."""
    batch = [
        torch.ones(shape).mul(1.7).to(dtype) if dtype is not torch.bool else torch.ones(shape, dtype=dtype)
        for dtype, shape in product(DTYPES, SHAPES)
    ]
    batch += [
        torch.arange(6).view(2, 3).T,
        torch.tensor([1 + 2j]).conj(),
        torch.arange(10)[::3],
        torch.ones(1).expand(4),
    ]
    (found,), _ = transfer([batch])
    for mine, theirs in zip(batch, found, strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
        assert mine.resolve_conj().reshape(-1).tolist() == theirs.reshape(-1).tolist()


STRUCTURES: dict[str, Any] = {
    "tensor": torch.arange(3),
    "text": "only",
    "none": None,
    "empty": {},
    "mixed": {"x": torch.arange(3), "names": ["a", None, 1.5], "flag": True, "nested": [({"y": torch.ones(2)},), []]},
    "named tuple": Pair(torch.arange(2), Pair("a", [torch.ones(1)])),
    "dataclass": Record(torch.arange(2), "n"),
    "defaultdict": collections.defaultdict(list, x=torch.arange(2)),
    "ordered": collections.OrderedDict(b=torch.ones(1), a=1),
    "deque": collections.deque([torch.arange(2)], maxlen=3),
    "sparse": torch.eye(2).to_sparse(),
    "jagged": torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged),
    "parameter": torch.nn.Parameter(torch.ones(2)),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_any_structure_arrives_as_what_it_was(name: str) -> None:
    """With its types, its texts and its order; twice in a row."""
    batch = STRUCTURES[name]
    found, layouts = transfer([batch, batch])

    for value in found:
        assert type(value) is type(batch)
        if name == "jagged":
            assert [part.tolist() for part in value.unbind()] == [[1.0], [1.0, 1.0]]
        else:
            assert str(value) == str(batch)
    assert layouts[0] > 0


def test_a_layout_is_sent_when_it_changes_and_only_then() -> None:
    """Other shapes, types, keys, orders of keys or kinds of containers are another layout; other values and texts are not."""
    x, y = torch.arange(3), torch.zeros(3, dtype=torch.int64)
    same: list[Any] = [{"x": x, "t": "a"}, {"x": y, "t": "longer"}]
    others: list[Any] = [
        {"x": y[:2], "t": "a"},
        {"x": y[:2].float(), "t": "a"},
        {"t": "a", "x": y[:2].float()},
        {"t": y[:2].float(), "x": "a"},
        [x, y],
        (x, y),
        Pair(x, y),
    ]
    found, layouts = transfer(same + others)

    assert [length > 0 for length in layouts] == [True, False] + [True] * len(others)
    assert str(found) == str(same + others)


def test_tails_travel_with_their_batch() -> None:
    """What is to be known of an incomplete round arrives with it, and with no other."""
    tails = [None, Tail((2, 2), (2, 0)), None, Tail((2, 0), (2, 0), (1,))]
    transfer([torch.arange(2)] * 4, tails)


def test_what_a_batch_holds_is_its_own() -> None:
    """Attributes of containers beside their items are those of each batch, although nothing else changes."""
    found, _ = transfer([made(colour) for colour in ("red", "blue")])
    assert [value.colour for value in found] == ["red", "blue"]


class Attributes(collections.UserDict[str, Any]):
    """A mapping with an attribute beside its items."""

    colour = ""


def made(colour: str) -> Attributes:
    """One of them."""
    value = Attributes(x=torch.ones(1))
    value.colour = colour
    return value
