"""Offload folders that were used before: what a model holds counts, what lies in the folder is for tensors without a value."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from accelkit import disk_offload, dispatch_model, init_empty_weights, load_checkpoint_and_dispatch
from accelkit.runtime.bigmodel.mapping import region_of
from accelkit.utils import OffloadedWeightsLoader


class Masked(nn.Module):
    """A layer and a buffer that no checkpoint holds."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("mask", torch.full((4,), value), persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The layer's output, masked."""
        result: torch.Tensor = self.layer(inputs) * self.mask
        return result


def two_layers() -> nn.Module:
    """A model with values of its own each time."""
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_real_model_keeps_its_values_whatever_lies_in_the_folder(tmp_path: Path, dtype: torch.dtype) -> None:
    """Of the same names and shapes, also in another dtype; the first model keeps its own, and the folder has the last one's."""
    first, second = two_layers(), two_layers().to(dtype)
    wanted = [{name: value.clone() for name, value in model.state_dict().items()} for model in (first, second)]
    disk_offload(first, tmp_path)
    dispatch_model(second, {"": "disk"}, offload_dir=tmp_path)

    for model, values in zip((first, second), wanted, strict=True):
        assert all(torch.equal(values[name], value) for name, value in model.state_dict().items())
    assert {parameter.dtype for parameter in second.parameters()} == {dtype}
    assert region_of(second[1].weight.detach()) is not None
    with init_empty_weights():
        third = two_layers()
    disk_offload(third, tmp_path)
    assert all(torch.equal(wanted[1][name], value) for name, value in third.state_dict().items())


def test_what_a_checkpoint_lacks_is_left_as_before(tmp_path: Path) -> None:
    """The model's own value, as the warning says, not that of a model that used the folder earlier."""
    folder = tmp_path / "folder"
    disk_offload(two_layers(), folder)
    state = two_layers().state_dict()
    del state["1.weight"]
    save_file(state, tmp_path / "model.safetensors")
    model = two_layers()
    wanted = model[1].weight.detach().clone()

    with pytest.warns(UserWarning, match=r"1\.weight: left as before"):
        load_checkpoint_and_dispatch(
            model, tmp_path / "model.safetensors", device_map={"": "disk"}, offload_folder=folder
        )
    assert torch.equal(model[1].weight, wanted)


def test_a_buffer_that_no_checkpoint_holds_is_the_models_own(tmp_path: Path) -> None:
    """Also when the folder has one of that name from the model before."""
    save_file(Masked(0).state_dict(), tmp_path / "model.safetensors")
    for value in (1.0, 2.0):
        model = load_checkpoint_and_dispatch(
            Masked(value),
            tmp_path / "model.safetensors",
            device_map={"": "disk"},
            offload_buffers=True,
            offload_folder=tmp_path / "folder",
        )
        assert model.mask.tolist() == [value] * 4


def test_conjugate_and_negated_tensors_are_written_with_their_values(tmp_path: Path) -> None:
    """Torch only marks such tensors; in a file the values are what counts."""
    pair = torch.view_as_complex(torch.tensor([[1.0, 2.0]])).conj()
    model = nn.Module()
    model.register_parameter("conjugate", nn.Parameter(pair))
    model.register_parameter("negated", nn.Parameter(pair.imag))
    dispatch_model(model, {"": "disk"}, offload_dir=tmp_path)

    assert model.conjugate.tolist() == [1 - 2j]
    assert model.negated.tolist() == [-2.0]
    assert OffloadedWeightsLoader(save_folder=tmp_path)["negated"].tolist() == [-2.0]
