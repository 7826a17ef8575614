"""What else looks at a dispatched model's forward: export; and arguments that are to stay where they are."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from accelkit import dispatch_model, init_empty_weights, load_checkpoint_and_dispatch
from tests.support.bigmodels import KINDS, ids, make, save, scores

pytestmark = pytest.mark.slow


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_dispatched_models_can_be_exported(tmp_path: Path, kind: str, strict: bool) -> None:
    """With every second part on disk; the program computes what the model in memory does."""
    model = make(kind)
    with init_empty_weights():
        empty = KINDS[kind]().eval()
    names = [name for name, _ in empty.named_children()]
    places = {"": "cpu", **{name: ("disk", "cpu")[number % 2] for number, name in enumerate(names)}}
    placed = load_checkpoint_and_dispatch(empty, save(model, tmp_path, "shards"), places, strict=True)
    with torch.no_grad():
        program = torch.export.export(placed, (ids(),), strict=strict)

    assert torch.equal(program.module()(ids())["scores"], scores(model))


class Inner(nn.Module):
    """Notes where its arguments are."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(
        self, x: torch.Tensor, *, cache: dict[str, torch.Tensor], mask: torch.Tensor, seen: Any
    ) -> torch.Tensor:
        """[n] -> [n]."""
        seen.append((x.device.type, cache["keys"].device.type, mask.device.type, self.weight.device.type))
        return x * self.weight


class Outer(nn.Module):
    """Hands a cache on by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.inner = Inner()

    def forward(self, x: torch.Tensor, **named: Any) -> torch.Tensor:
        """[n] -> [n]."""
        return self.inner(x * self.weight, **named)


@pytest.mark.parametrize("skip_keys", ["cache", ["cache"], ["cache", "other"]])
def test_arguments_that_are_skipped_stay_at_every_level(skip_keys: Any) -> None:
    """With meta as a device that computes shapes: weights and a mask come there at both levels, the cache at none."""
    model = dispatch_model(Outer(), {"": "cpu"}, main_device="meta", skip_keys=skip_keys)
    seen: list[Any] = []
    cache = {"keys": torch.ones(3)}
    model(torch.ones(2, device="meta"), cache=cache, mask=torch.ones(2), seen=seen)

    assert seen == [("meta", "cpu", "meta", "meta")]
    assert model.inner.weight.device.type == "cpu"
