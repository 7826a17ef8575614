"""What a model needs: the arithmetic, and its agreement with the runtime."""

import itertools
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from accelkit import infer_auto_device_map, init_empty_weights
from accelkit.contract.anatomy import Anatomy, TensorPart
from accelkit.contract.placement import Place
from accelkit.host.errors import UsageError
from accelkit.host.estimate import drawing, figures, headers
from accelkit.runtime.bigmodel.describe import of_model
from accelkit.runtime.bigmodel.device_map import place_of
from accelkit.utils import compute_module_sizes
from tests.support.bigmodels import KINDS, make, save


def part(name: str, dtype: str, count: int, width: int, *, trained: bool = True) -> TensorPart:
    """A tensor in the layer of its name."""
    return TensorPart(name=name, layers=(name,), dtype=dtype, count=count, bytes=count * width, is_trained=trained)


MIXED = Anatomy(
    source="",
    tensors=(
        part("a", "bfloat16", 1000, 2),
        part("b", "bfloat16", 7, 2),
        part("mask", "bool", 64, 1, trained=False),
        part("running", "float32", 10, 4, trained=False),
    ),
)


@pytest.mark.parametrize(
    ("dtype", "weights", "training"),
    [
        ("stored", 2014 + 64 + 40, 1007 * 18 + 64 + 40),
        ("float32", 4028 + 64 + 40, 1007 * 16 + 64 + 40),
        ("float16", 2014 + 64 + 20, 1007 * 18 + 64 + 40),
        ("bfloat16", 2014 + 64 + 20, 1007 * 18 + 64 + 40),
        ("float8", 1007 + 64 + 10, None),
        ("int8", 1007 + 64 + 10, None),
        ("int4", 500 + 4 + 64 + 5, None),
    ],
)
def test_needs(dtype: str, weights: int, training: int | None) -> None:
    """Floating tensors change their size, others do not; only parameters are trained, in float32 with copies in half types."""
    found = figures.needs(MIXED, dtype)

    assert (found.weights, found.training) == (weights, training)
    assert (found.largest_layer, found.largest_layer_bytes) == ("a", figures.loaded_bytes(MIXED.tensors[0], dtype))
    assert weights * 1.2 <= found.inference < weights * 1.2 + 1


def test_an_unknown_dtype() -> None:
    """The message lists what is known."""
    with pytest.raises(UsageError, match="--dtype float64: must be one of stored, float32"):
        figures.needs(MIXED, "float64")


LIMITS: list[dict[Place, int]] = [
    dict(zip(places, sizes, strict=True))
    for places in ((0, "cpu"), (0, 1, "cpu"), ("cpu",))
    for sizes in itertools.product((0, 3000, 9000, 60000), repeat=len(places))
]


@pytest.mark.parametrize("kind", KINDS)
def test_the_map_is_the_runtimes(kind: str) -> None:
    """With the layers that stay whole there, every tensor is where the runtime puts it; each device's bytes add up."""
    with init_empty_weights():
        model = KINDS[kind]()
    model._no_split_modules = ["Layer"]  # type: ignore[assignment]
    found = of_model(model, "")
    assert sum(part.bytes for part in found.tensors) == compute_module_sizes(model)[""]
    for limits in LIMITS:
        shares, _ = figures.spread(found, "stored", limits)
        wanted = infer_auto_device_map(model, dict(limits), offload_buffers=True)
        where = {name: share.device for share in shares for name, _ in share.units}
        for part in found.tensors:
            assert {where[layer] for layer in part.layers} == {place_of(wanted, part.name)}
        for share in shares:
            assert share.used == sum(size for _, size in share.units)
            assert share.limit is None or share.used + share.kept_free <= share.limit
        assert sum(share.used for share in shares) == figures.needs(found, "stored").weights


@pytest.mark.parametrize("form", ["one file", "shards"])
@pytest.mark.parametrize("kind", KINDS)
def test_headers_tell_what_is_saved(tmp_path: Path, kind: str, form: str) -> None:
    """All tensors of the state dict, what is tied once, each with its bytes; found from the folder, and from the file."""
    model = make(kind)
    folder = save(model, tmp_path, form)
    file = headers.find(folder)
    assert file is not None
    assert headers.find(file) == file

    found = headers.read(file)

    names = {name for name, _ in itertools.chain(model.named_parameters(), model.named_buffers())}
    sizes = {name: value.numel() * value.element_size() for name, value in model.state_dict().items()}
    assert {part.name for part in found.tensors} == names & set(sizes)
    assert all(part.bytes == sizes[part.name] for part in found.tensors)
    assert all(part.dtype == str(model.state_dict()[part.name].dtype)[6:] for part in found.tensors)


def test_bars() -> None:
    """Anything held shows; full is full; what differs by a number is drawn together."""
    shares, _ = figures.spread(MIXED, "stored", {0: 3000, "cpu": 10})
    lines = drawing.bars(shares)
    assert [line.split()[0] for line in lines] == ["gpu", "cpu", "disk"]
    assert "█" in lines[0]
    assert "█" not in lines[1]
    assert drawing.compressed(["e", "l.0", "l.1", "l.2", "l.4", "m.5", "6", "7", "n"]) == (
        ["e", "l.0 to 2", "l.4", "m.5", "6 to 7", "n"]
    )


@pytest.mark.parametrize("limits", LIMITS)
def test_the_picture_is_well_formed(limits: dict[Place, int]) -> None:
    """It parses, has a block a layer, and no block leaves its picture; names cannot break out of it."""
    odd = Anatomy(source="", tensors=(part('<script>"&\x1b\n', "float32", 3000, 4), *MIXED.tensors))
    shares, _ = figures.spread(odd, "stored", limits)
    root = ET.fromstring(drawing.svg('a & "b" <c>', shares))
    blocks = [node for node in root.iter() if node.tag.endswith("rect") and node.get("class", "").startswith("layer")]
    assert len(blocks) == sum(len(share.units) for share in shares)
    for node in blocks:
        assert float(node.get("x", "")) + float(node.get("width", "")) <= float(root.get("width", ""))
