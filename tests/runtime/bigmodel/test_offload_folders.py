"""Offload folders that were used before: what a model holds counts, what lies in the folder is for tensors without a value."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from accelkit import (
    CheckpointFileError,
    SettingError,
    disk_offload,
    dispatch_model,
    init_empty_weights,
    load_checkpoint_and_dispatch,
    load_checkpoint_in_model,
)
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


def test_a_buffer_stays_in_memory_where_no_folder_is_given(tmp_path: Path) -> None:
    """One that no checkpoint holds, and one that would have to be cast."""
    for state in (Masked(0).state_dict(), {**Masked(0).state_dict(), "mask": torch.full((4,), 3.0)}):
        save_file(state, tmp_path / "model.safetensors")
        model = load_checkpoint_and_dispatch(
            Masked(3), tmp_path / "model.safetensors", device_map={"": "disk"}, offload_buffers=True
        )
        assert model.mask.tolist() == [3.0] * 4
        assert region_of(model.layer.weight.detach()) is not None
    save_file({"mask": torch.full((4,), 3.0)}, tmp_path / "model.safetensors")
    part = Masked(0)
    part.layer = nn.Identity()
    load_checkpoint_in_model(part, tmp_path / "model.safetensors", {"": "disk"}, dtype=torch.float16)
    assert part.mask.dtype == torch.float16
    assert part.mask.tolist() == [3.0] * 4


def unaligned(path: Path, model: nn.Module) -> None:
    """A safetensors file whose values begin at an odd byte."""
    state = {name: value.numpy().tobytes() for name, value in model.state_dict().items()}
    ends = list(itertools.accumulate(map(len, state.values())))
    header: dict[str, Any] = {
        name: {"dtype": "F32", "shape": list(value.shape), "data_offsets": [end - len(state[name]), end]}
        for (name, value), end in zip(model.state_dict().items(), ends, strict=True)
    }
    text = json.dumps(header).encode()
    text += b" " * (1 - len(text) % 4 if len(text) % 4 < 2 else 5 - len(text) % 4)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(state.values()))


def test_what_cannot_be_on_disk_is_said_before_the_model_is_touched(tmp_path: Path) -> None:
    """A weight that the checkpoint lacks, one without a value, and a file whose values cannot be used as they lie."""
    path = tmp_path / "model.safetensors"
    state = two_layers().state_dict()
    del state["1.weight"]
    save_file(state, path)
    with init_empty_weights():
        empty = two_layers()
    model = two_layers()
    before = {name: value.clone() for name, value in model.state_dict().items()}

    with (
        pytest.warns(UserWarning, match=r"1\.weight"),
        pytest.raises(ValueError, match=r"1\.weight on disk, .*offload_folder is needed"),
    ):
        load_checkpoint_and_dispatch(model, path, device_map={"": "disk"})
    with pytest.warns(UserWarning, match=r"1\.weight"), pytest.raises(ValueError, match=r"without a value: 1\.weight"):
        load_checkpoint_and_dispatch(empty, path, device_map={"": "disk"})
    assert all(parameter.is_meta for parameter in empty.parameters())
    unaligned(path, source := two_layers())
    with pytest.raises(ValueError, match=r"0\.weight on disk, .*would have to be copied"):
        load_checkpoint_and_dispatch(model, path, device_map={"": "disk"})
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    load_checkpoint_and_dispatch(model, path, device_map={"": "disk"}, offload_folder=tmp_path / "folder")
    assert all(torch.equal(source.state_dict()[name], value) for name, value in model.state_dict().items())
    assert region_of(model[0].weight.detach()) is not None


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", "3", '{"0.weight": 3}', '{"0.weight": {}}', '{"0.weight": {"dtype": "float32", "shape": [-4, -4]}}',
        '{"0.weight": {"dtype": "float32", "shape": "ab"}}', '{"0.weight": {"dtype": ["x"], "shape": [4, 4]}}',
        '{"0.weight": {"dtype": "nn", "shape": [4, 4]}}', '{"0.weight": {"safetensors_file": 3}}',
    ],
)  # fmt: skip
def test_a_damaged_index_is_one_error_that_names_it(tmp_path: Path, content: str) -> None:
    """For a model without values, which needs it, and for a real one, whose entries would be added to it; both are as they were."""
    disk_offload(two_layers(), tmp_path)
    (tmp_path / "index.json").write_text(content, encoding="utf-8")
    before = sorted(tmp_path.iterdir())
    with init_empty_weights():
        empty = two_layers()
    real = two_layers()
    for model in (empty, real):
        with pytest.raises(CheckpointFileError, match=r"index\.json"):
            disk_offload(model, tmp_path)
        assert not hasattr(model, "hf_device_map")
    assert all(parameter.is_meta for parameter in empty.parameters())
    assert region_of(real[0].weight) is None
    assert sorted(tmp_path.iterdir()) == before


def test_an_index_that_points_at_nothing_names_what_is_not_there(tmp_path: Path) -> None:
    """The file, or the tensor in it."""
    save_file({"a": torch.zeros(2)}, tmp_path / "x.safetensors")
    index = {"b": {"safetensors_file": str(tmp_path / "x.safetensors")}, "c": {"safetensors_file": "gone.safetensors"}}
    loader = OffloadedWeightsLoader(index=index)
    with pytest.raises(CheckpointFileError, match=r"x\.safetensors holds no 'b'"):
        loader["b"]
    with pytest.raises(CheckpointFileError, match=r"gone\.safetensors cannot be read"):
        loader["c"]


def test_the_tensors_without_a_value_are_named_alone(tmp_path: Path) -> None:
    """Not those that have one; and what there is in another shape is said."""
    disk_offload(two_layers(), tmp_path)
    index = json.loads((tmp_path / "index.json").read_text(encoding="utf-8"))
    del index["1.bias"]
    index["0.weight"]["shape"] = [2, 8]
    (tmp_path / "index.json").write_text(json.dumps(index), encoding="utf-8")
    with init_empty_weights():
        model = two_layers()
    with pytest.raises(
        SettingError, match=r"without a value: 0\.weight, 1\.bias\n.*0\.weight has the shape \[2, 8\] instead of"
    ):
        disk_offload(model, tmp_path)
