"""Modules that load their state in a way of their own are loaded in that way, wherever their tensors go."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import parametrizations

from accelkit import (
    Accelerator,
    CheckpointFileError,
    init_empty_weights,
    load_checkpoint_and_dispatch,
    load_checkpoint_in_model,
)
from accelkit.runtime.bigmodel.mapping import region_of
from tests.support.bigmodels import FORMS, save

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


class Stateful(nn.Module):
    """A layer and extra state."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.scale = torch.tensor([scale])

    def get_extra_state(self) -> torch.Tensor:
        """The scale."""
        return self.scale

    def set_extra_state(self, state: torch.Tensor) -> None:
        """The scale."""
        self.scale = state


class Renamed(nn.Module):
    """Once its weight was called `kernel` and transposed, it had one child called `old`, and it counts what it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 3))
        self.register_buffer("table", torch.zeros(1))
        self.new = nn.Linear(2, 2)
        self.loads = 0

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        if f"{prefix}kernel" in state_dict:
            state_dict[f"{prefix}weight"] = state_dict.pop(f"{prefix}kernel").t()
        for name in [name for name in state_dict if name.startswith(f"{prefix}old.")]:
            state_dict[name.replace(f"{prefix}old.", f"{prefix}new.")] = state_dict.pop(name)
        self.table = state_dict.get(f"{prefix}table", self.table)
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self.loads += 1


def old_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """The state as it was saved once."""
    state = {name.replace("new.", "old."): value for name, value in model.state_dict().items()}
    state["0.kernel"] = state.pop("0.weight").t().contiguous()
    return state


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("is_empty", [False, True])
@pytest.mark.parametrize("place", ["cpu", "disk"])
def test_old_names_are_converted(tmp_path: Path, place: str, is_empty: bool) -> None:
    """By an override and by a hook of torch's, on meta and real; also tensors of another shape, attributes, and modules below."""
    source = nn.Sequential(Renamed(), nn.utils.weight_norm(nn.Linear(3, 3)))
    source[0].table = torch.arange(4.0)
    save_file(old_state(source), tmp_path / "model.safetensors")
    with init_empty_weights() if is_empty else torch.no_grad():
        model = nn.Sequential(Renamed(), parametrizations.weight_norm(nn.Linear(3, 3)))
    model = load_checkpoint_and_dispatch(
        model, tmp_path / "model.safetensors", {"": place}, strict=True, offload_folder=tmp_path / "folder"
    )

    inputs = torch.randn(1, 3)
    assert torch.equal(model[1](inputs), source[1](inputs))
    assert torch.equal(model[0].weight, source[0].weight)
    assert torch.equal(model[0].new.weight, source[0].new.weight)
    assert model[0].table.tolist() == [0, 1, 2, 3]
    assert model[0].loads == 1
    assert region_of(model[0].new.weight.detach()) is not None
    assert isinstance(model[0].weight, nn.Parameter)


def test_nothing_is_changed_where_something_does_not_fit(tmp_path: Path) -> None:
    """Neither tensors nor attributes, and both kinds of misfit are named."""
    model = nn.Sequential(Renamed(), nn.Linear(2, 2))
    save_file({**old_state(model), "1.bias": torch.ones(5)}, tmp_path / "model.safetensors")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        model[0].weight.add_(1)
        before["0.weight"] += 1

    with pytest.raises(CheckpointFileError, match=r"1\.bias: \[5\] in the checkpoint"):
        load_checkpoint_in_model(model, tmp_path)
    save_file({**old_state(model), "0.kernel": torch.ones(7, 2)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointFileError, match=r"0\.weight: \[2, 7\] in the checkpoint, \[2, 3\] here"):
        load_checkpoint_in_model(model, tmp_path)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model[0].loads == 0


@pytest.mark.parametrize("form", FORMS)
def test_extra_state_is_restored(tmp_path: Path, form: str) -> None:
    """From every form of checkpoint; where it is lacking it is missing."""
    model = nn.Sequential(Stateful())
    load_checkpoint_in_model(model, save(nn.Sequential(Stateful(3.0)), tmp_path, form), strict=True)
    assert model[0].scale.tolist() == [3.0]

    save_file(
        {f"0.layer.{name}": value for name, value in nn.Linear(2, 2).state_dict().items()}, tmp_path / "x.safetensors"
    )
    with pytest.raises(CheckpointFileError, match=r"no value for 0\._extra_state"):
        load_checkpoint_in_model(model, tmp_path / "x.safetensors", strict=True)


def test_extra_state_of_save_model(tmp_path: Path) -> None:
    """What we write we read."""
    Accelerator(cpu=True).save_model(Stateful(3.0), tmp_path)
    with init_empty_weights():
        model = Stateful()
    load_checkpoint_in_model(model, tmp_path, strict=True)

    assert model.scale.tolist() == [3.0]


def test_lazy_modules_and_norms_of_old_checkpoints(tmp_path: Path) -> None:
    """A lazy parameter takes the shape of what is loaded; counts that old checkpoints lack begin at zero."""
    source = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    state = source.state_dict()
    del state["1.num_batches_tracked"]
    save_file(state, tmp_path / "model.safetensors")
    model = nn.Sequential(nn.LazyLinear(3), nn.BatchNorm1d(3))
    load_checkpoint_in_model(model, tmp_path, strict=True)

    assert torch.equal(model[0].weight, source[0].weight)
    assert model[1].num_batches_tracked == 0
