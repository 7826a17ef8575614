"""Nested structures: walked once, rebuilt as themselves."""

import collections
import collections.abc
import dataclasses
import types
from typing import Any, NamedTuple

import pytest
import torch

from accelkit.runtime import structure, tensors
from accelkit.runtime.collectives import packing


class Pair(NamedTuple):
    """A named tuple."""

    x: Any
    y: Any


class Strict(tuple[Any, ...]):
    """A tuple whose constructor takes something else."""

    __slots__ = ()

    def __new__(cls, *, first: Any) -> "Strict":  # noqa: PYI034
        """Make one of one item."""
        return super().__new__(cls, (first,))


class Tagged(list[Any]):
    """A list with an attribute."""

    def __init__(self, tag: str, items: list[Any]) -> None:
        super().__init__(items)
        self.tag = tag


@dataclasses.dataclass(frozen=True, kw_only=True)
class Frozen:
    """A frozen dataclass with a field that its constructor does not take."""

    x: Any
    made: Any = dataclasses.field(init=False, default=None)


class Batch(collections.UserDict[str, Any]):
    """A mapping with a `to` of its own that takes no more than a device, and an attribute."""

    moved = False

    def to(self, device: Any) -> "Batch":
        """Note that it was asked."""
        self.moved = True
        return self


X = torch.tensor([1.0])
STRUCTURES = [
    {"a": [X, (X, None)], "b": "text"},
    Pair(X, Pair(1, X)),
    Strict(first=X),
    Tagged("t", [X, 2]),
    Frozen(x=[X]),
    collections.defaultdict(list, x=X),
    collections.OrderedDict(b=X, a=1),
    collections.deque([X, 1], maxlen=2),
    collections.Counter(a=1),
    types.MappingProxyType({"a": X}),
    Batch(x=X),
    torch.ones(2, 2).max(0),
    (),
    [],
    {},
    X,
    None,
    "text",
]


@pytest.mark.parametrize("data", STRUCTURES, ids=lambda data: type(data).__name__)
def test_a_structure_is_rebuilt_as_itself(data: Any) -> None:
    """Type, order, attributes and values stay, the containers are new ones, and the original is not changed."""
    before = str(data)
    rebuilt = structure.map_leaves(lambda leaf: leaf, data)

    assert type(rebuilt) is type(data)
    assert str(rebuilt) == before == str(data)
    assert vars(rebuilt).keys() >= vars(data).keys() if hasattr(data, "__dict__") else True
    if structure.is_container(data) and data:
        assert rebuilt is not data
    assert structure.leaves(structure.with_leaves(data, structure.leaves(data))) == structure.leaves(data)


def test_containers_keep_what_is_beside_their_items() -> None:
    """A default factory, a maximal length, an attribute."""
    assert structure.map_leaves(lambda _: 1, collections.defaultdict(list, x=0)).default_factory is list
    assert structure.map_leaves(lambda _: 1, collections.deque([0], maxlen=4)).maxlen == 4
    assert structure.map_leaves(lambda _: 1, Tagged("t", [0])).tag == "t"


class Kept(collections.abc.MutableMapping[str, Any]):
    """A mapping that keeps its values in a dict of its own, and says nothing about copies."""

    def __init__(self, **values: Any) -> None:
        self._values = dict(values)

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._values[key] = value

    def __delitem__(self, key: str) -> None:
        del self._values[key]

    def __iter__(self) -> Any:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def test_the_mapping_that_was_given_stays_as_it_was() -> None:
    """Also one whose copies would share what the values are kept in."""
    given = Kept(x=1, y=Kept(z=2))
    made = structure.map_leaves(lambda leaf: leaf * 10, given)

    assert type(made) is Kept
    assert (made["x"], made["y"]["z"]) == (10, 20)
    assert (given["x"], given["y"]["z"]) == (1, 2)


def test_a_mapping_that_cannot_be_changed_is_named() -> None:
    """A read-only mapping of an unknown type is refused by its type's name."""

    class Fixed(collections.abc.Mapping[str, int]):
        def __getitem__(self, key: str) -> int:
            return 1

        def __iter__(self) -> Any:
            return iter("a")

        def __len__(self) -> int:
            return 1

    with pytest.raises(TypeError, match="Fixed cannot be changed"):
        structure.map_leaves(lambda leaf: leaf, Fixed())


def test_paths_say_where_a_leaf_is() -> None:
    """Keys, indices, names and fields, as one would write them."""
    data = {"a": [Pair(X, Frozen(x=1))]}

    assert [path for path, _ in structure.walk(data)] == ["['a'][0].x", "['a'][0].y.x", "['a'][0].y.made"]
    with pytest.raises(TypeError, match=r"\['a'\]\[0\]\.y\.x is of type int"):
        structure.tensor_leaves(data, "gather")


def test_moving_uses_what_a_batch_offers() -> None:
    """A batch's own `to` is used, without arguments it does not know; keys to skip stay at every depth."""
    meta = torch.device("meta")
    batch = Batch(x=X)
    moved = tensors.send_to_device(
        {"b": batch, "x": X, "s": "text", "n": Pair(X, {"keep": X})}, meta, non_blocking=True, skip_keys="keep"
    )

    assert moved["b"] is batch
    assert batch.moved
    assert moved["x"].device == moved["n"].x.device == meta
    assert moved["n"].y["keep"] is X
    assert moved["s"] == "text"
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)])
    assert tensors.send_to_device([packed], "meta")[0].data.device == meta


def test_small_helpers() -> None:
    """Batch size, concatenation, slices and widening act on every tensor of a structure."""
    data = {"s": "text", "x": torch.ones(3, 2, dtype=torch.bfloat16), "n": torch.ones(3, dtype=torch.int8)}

    assert tensors.find_batch_size(data) == 3
    assert tensors.convert_to_fp32(data)["x"].dtype == torch.float32
    assert tensors.convert_to_fp32(data)["n"].dtype == torch.int8
    assert tensors.concatenate([["text"]]) == ["text"]
    assert tensors.concatenate([(X,), (X,)])[0].tolist() == [1.0, 1.0]
    assert tensors.slice_tensors([data["x"]], slice(0, 1))[0].shape == (1, 2)
    assert tensors.recursively_apply(lambda leaf: leaf + 1, [X, "text"])[1] == "text"
    with pytest.raises(ValueError, match="no tensor"):
        tensors.find_batch_size(["text"])
    with pytest.raises(TypeError, match="type str"):
        tensors.recursively_apply(lambda leaf: leaf, ["text"], error_on_other_type=True)


def test_what_is_packed_comes_out_again() -> None:
    """Any mixture of types and shapes, strided, conjugated, empty or without dimensions, survives the flat buffer, bit for bit."""
    leaves = [
        torch.randn(3, 2).t(), torch.tensor(True), torch.randn(5).bfloat16(), torch.zeros(0, 3), torch.tensor(3),
        torch.randn(2, dtype=torch.complex64).conj(), torch.tensor([[1, 2]], dtype=torch.int8), torch.randn(3).half(),
    ]  # fmt: skip
    for chosen in ([leaf] for leaf in leaves):
        assert torch.equal(packing.unpack_one(packing.pack(chosen), chosen)[0], chosen[0])
    for leaf, back in zip(leaves, packing.unpack_one(packing.pack(leaves), leaves), strict=True):
        assert torch.equal(leaf, back)
