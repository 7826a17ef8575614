"""The rules of `kit plan` against what torch's allocator gave out on a quiet machine, and against each other."""

from dataclasses import replace

import pytest

from accelkit.host.errors import UsageError
from accelkit.host.sizing import Setting, Shape, need, shape_of

LAYERS = Shape(parameters=12 * 512 * 512, largest=512 * 512, blocks=(512 * 512,) * 12)
KEEP, WHOLE, HALF = {"reshards": False}, {"wraps": False}, {"precision": "bf16"}
MEASURED = [
    ("single", 1, {}, 4.25), ("ddp", 2, {}, 5.25), ("ddp", 2, {"bucket_view": True}, 4.25), ("ddp", 4, {}, 5.25),
    ("fsdp", 2, {}, 2.625), ("fsdp", 2, KEEP, 2.96), ("fsdp", 2, WHOLE, 4.083), ("fsdp", 2, HALF, 2.625),
    ("fsdp", 2, {**HALF, **WHOLE}, 4.042), ("fsdp", 4, {}, 1.646), ("fsdp", 4, KEEP, 2.189), ("fsdp", 4, WHOLE, 3.083),
    ("fsdp", 4, HALF, 1.375), ("fsdp", 4, {**HALF, **WHOLE}, 3.042),
]  # fmt: skip
"""Peaks of two steps of AdamW on twelve layers of 512 x 512, gloo, torch 2.13, in sizes of the model in float32.

python -m tests.distributed.memory_checks measures such peaks; under load the backend's threads hold more for a while.
"""


@pytest.mark.parametrize(("strategy", "ranks", "words", "wanted"), MEASURED)
def test_rules_are_near_what_was_measured(strategy: str, ranks: int, words: dict[str, object], wanted: float) -> None:
    """Within 15 %."""
    found = need(LAYERS, Setting(shards=ranks, **words), strategy).peak / (LAYERS.parameters * 4)  # type: ignore[arg-type]

    assert found == pytest.approx(wanted, rel=0.15)


def test_more_of_anything_takes_no_less() -> None:
    """Shards, recomputation and smaller optimizers never take more; tokens never less."""
    shape = replace(LAYERS, hidden=512)
    base = Setting(tokens=4096)
    for strategy in ("single", "ddp", "fsdp"):
        peak = need(shape, base, strategy).peak
        assert need(shape, replace(base, shards=4), strategy).peak <= peak
        assert need(shape, replace(base, recomputes=True), strategy).peak <= peak
        assert need(shape, replace(base, optimizer="sgd"), strategy).peak < peak
        assert need(shape, replace(base, tokens=8192), strategy).peak > peak
    with pytest.raises(UsageError, match="lion"):
        need(shape, replace(base, optimizer="lion"), "fsdp")


def test_blocks_are_found_by_the_first_number_in_a_name() -> None:
    """Experts inside a layer belong to the layer; what has no number is outside the blocks."""
    shape = shape_of({
        "embed.weight": (10, 4), "layers.0.up.weight": (8, 4), "layers.0.experts.3.weight": (4, 4),
        "layers.1.up.weight": (8, 4), "layers.0.norm": (4,), "layers.1.norm": (4,), "head.bias": (10,),
    })  # fmt: skip

    assert shape == Shape(parameters=40 + 32 + 16 + 32 + 8 + 10, largest=40, blocks=(52, 36), hidden=4)
    assert shape.rest == 50
