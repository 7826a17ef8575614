"""What names tell of a model."""

import itertools

import pytest

from accelkit.contract.anatomy import Anatomy, TensorPart, from_names, layer_of, units


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("model.layers.3.mlp.up.weight", "model.layers.3"),
        ("model.layers.11.experts.7.up.weight", "model.layers.11"),
        ("transformer.wte.weight", "transformer.wte"),
        ("lm_head.weight", "lm_head"),
        ("0.weight", "0"),
        ("weight", "weight"),
        ("logit_scale", "logit_scale"),
        ("h.0", "h"),
        ("layer1.0.conv1.weight", "layer1.0"),
    ],
)
def test_the_layer_of_a_name(name: str, layer: str) -> None:
    """What lies under the first number, else the module."""
    assert layer_of(name) == layer


def test_the_order_of_names() -> None:
    """Embeddings, layers by number, norms, heads, in whatever order they are given; encoders before decoders."""
    wanted = [
        "shared.weight",
        "encoder.block.0.up",
        "encoder.block.2.up",
        "encoder.block.10.up",
        "decoder.block.0.up",
        "decoder.norm.weight",
        "lm_head.weight",
    ]
    for order in itertools.permutations(wanted):
        found = from_names("", dict.fromkeys(order, ("float32", 1, 4)))
        assert [part.name for part in found.tensors] == wanted


def test_what_is_placed_as_a_whole() -> None:
    """A tensor that two layers hold is one, in both."""
    tied = TensorPart(name="embed.weight", layers=("embed", "head"), dtype="float32", count=2, bytes=8)
    own = TensorPart(name="head.bias", layers=("head",), dtype="float32", count=1, bytes=4)

    first, second = units(Anatomy(source="", tensors=(tied, own)), [8, 4])

    assert (first.name, first.size) == ("embed", 8)
    assert (second.name, second.size) == ("head", 12)
    assert set(first.tensors) & set(second.tensors)
