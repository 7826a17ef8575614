"""Models with tensors that are more than a dtype and a shape, or not yet that."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from accelkit import (
    SettingError,
    cpu_offload,
    disk_offload,
    dispatch_model,
    infer_auto_device_map,
    load_checkpoint_in_model,
)
from accelkit.utils import CustomDtype, compute_module_sizes

pytestmark = pytest.mark.filterwarnings("ignore:torch.quantize", "ignore:TypedStorage", "ignore:.*quantized")


class Graph(nn.Module):
    """A layer, a sparse buffer and a quantized one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("edges", torch.rand(4, 4).relu().to_sparse())
        self.register_buffer("scales", torch.quantize_per_tensor(torch.randn(4), 0.1, 3, torch.qint8))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The layer's output along the edges, scaled."""
        return torch.sparse.mm(self.edges, self.layer(inputs)) * self.scales.dequantize()


@pytest.mark.parametrize("place", ["cpu", "disk"])
def test_sparse_and_quantized_buffers_stay_where_the_model_runs(tmp_path: Path, place: str) -> None:
    """They are no bytes of a dtype and a shape, so that they have no view of a file; the model computes what it did."""
    model, inputs = Graph(), torch.randn(4, 4)
    expected = model(inputs)
    with torch.no_grad():
        assert torch.equal(dispatch_model(model, {"": place}, offload_dir=tmp_path)(inputs), expected)


def test_what_an_offload_folder_cannot_hold_is_refused_by_name(tmp_path: Path) -> None:
    """Its bytes alone would be other values, or none; the model and the folder are as they were."""
    model = Graph()
    with pytest.raises(SettingError, match=r"edges is torch\.sparse_coo, which an offload folder cannot hold"):
        disk_offload(model, tmp_path, offload_buffers=True)
    model.edges = None  # type: ignore[assignment]
    with pytest.raises(SettingError, match=r"scales is torch\.qint8"):
        disk_offload(model, tmp_path, offload_buffers=True)
    assert not any(tmp_path.iterdir())
    assert not hasattr(model, "hf_device_map")


def test_sparse_and_quantized_tensors_of_a_torch_file_keep_their_values(tmp_path: Path) -> None:
    """A view of the file's bytes under their dtype would have no scale, and bring the process down when it is read."""
    torch.save(Graph().state_dict(), tmp_path / "pytorch_model.bin")
    wanted = torch.load(tmp_path / "pytorch_model.bin", weights_only=True)

    model = Graph()
    load_checkpoint_in_model(model, tmp_path)
    assert torch.equal(model.scales, wanted["scales"])
    assert torch.equal(model.edges.to_dense(), wanted["edges"].to_dense())


def lazy() -> nn.Module:
    """Shapes that a first forward gives."""
    return nn.Sequential(nn.Linear(4, 2), nn.LazyLinear(3))


def test_what_has_no_shape_yet_is_named(tmp_path: Path) -> None:
    """By whatever would ask for its size or its values; a map to one device only moves the model, and lets it be."""
    for ask in (compute_module_sizes, infer_auto_device_map, partial(disk_offload, offload_dir=tmp_path), cpu_offload):
        with pytest.raises(SettingError, match=r"no shape yet"):
            ask(lazy())
    assert dispatch_model(lazy(), {"": "cpu"})(torch.ones(1, 4)).shape == (1, 3)


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.complex64, CustomDtype.INT4, float, "int8"])
def test_floating_weights_are_loaded_in_floating_types_alone(tmp_path: Path, dtype: Any) -> None:
    """Another type would cut their values off, or is none; the model is as it was."""
    model = nn.Linear(4, 4)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    with pytest.raises(SettingError, match="dtype="):
        load_checkpoint_in_model(model, tmp_path, dtype=dtype)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
