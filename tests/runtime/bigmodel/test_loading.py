"""Loading checkpoints of every form into models on meta and real ones."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from accelkit import CheckpointFileError, init_empty_weights, load_checkpoint_and_dispatch, load_checkpoint_in_model
from accelkit.runtime.bigmodel.mapping import region_of
from accelkit.utils import find_tied_parameters, set_module_tensor_to_device
from tests.support.bigmodels import FORMS, KINDS, make, save, scores, untied_state

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def empty(kind: str) -> nn.Module:
    """The model on meta, for evaluation."""
    with init_empty_weights():
        return KINDS[kind]().eval()


def equal(first: nn.Module, second: nn.Module) -> bool:
    """Whether two models hold the same tensors, dtypes included."""
    pairs = zip(first.state_dict().items(), second.state_dict().items(), strict=True)
    return all(a == b and x.dtype == y.dtype and torch.equal(x, y) for (a, x), (b, y) in pairs)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("copy", [False, True])
def test_every_form_of_checkpoint_gives_the_model_back(tmp_path: Path, kind: str, form: str, copy: bool) -> None:
    """Ties, integer and bool buffers and outputs too; what the file can serve is a view of it unless copied."""
    model = make(kind)
    loaded = empty(kind)
    load_checkpoint_in_model(loaded, save(model, tmp_path, form), strict=True, copy=copy)

    assert equal(model, loaded)
    assert torch.equal(scores(model), scores(loaded))
    assert find_tied_parameters(loaded) == find_tied_parameters(model)
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    mapped = region_of(next(loaded.parameters()).detach()) is not None
    assert mapped == (not copy and form != "distributed")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", ["cpu", "disk"])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16, "float16", torch.float64])
def test_one_rule_for_dtypes_on_every_path(
    tmp_path: Path, form: str, place: str, dtype: torch.dtype | str | None
) -> None:
    """Not given: the checkpoint's. Given: floating tensors have it, integers and bools keep theirs."""
    model = make("encoder-decoder", torch.bfloat16)
    loaded = empty("encoder-decoder")
    path = save(model, tmp_path / "checkpoint", form)
    load_checkpoint_in_model(loaded, path, {"": place}, offload_folder=tmp_path / "offload", dtype=dtype, strict=True)

    wanted = {"float16": torch.float16, None: torch.bfloat16}.get(dtype, dtype)  # type: ignore[arg-type]
    for name, value in loaded.state_dict().items():
        assert value.dtype == (wanted if value.is_floating_point() else model.state_dict()[name].dtype), name
    assert equal(model.to(wanted), loaded)  # type: ignore[arg-type]


def test_nothing_is_written_where_the_file_serves_and_a_folder_is_asked_for_elsewhere(tmp_path: Path) -> None:
    """Safetensors and .bin in their own dtype need no folder; a cast does, and says for which tensor."""
    for form in ("one file", "torch"):
        path = save(make("decoder"), tmp_path / form, form)
        load_checkpoint_in_model(empty("decoder"), path, {"": "disk"}, offload_folder=tmp_path / "off", strict=True)
        load_checkpoint_in_model(empty("decoder"), path, {"": "disk"}, strict=True)
        assert not (tmp_path / "off").exists()
        with pytest.raises(ValueError, match=r"scale on disk.*offload_folder is needed"):
            load_checkpoint_in_model(empty("decoder"), path, {"": "disk"}, dtype=torch.float16)


def test_missing_and_unexpected_names_are_all_named(tmp_path: Path) -> None:
    """With the file; strict is an error before anything is loaded; a missing name that is tied to a present one is none."""
    model = make("decoder")
    state = untied_state(model)
    state.pop("layers.1.up.weight")
    save_file({**state, "crown.weight": torch.ones(1)}, tmp_path / "model.safetensors")
    loaded = empty("decoder")

    with pytest.raises(CheckpointFileError) as caught:
        load_checkpoint_in_model(loaded, tmp_path, strict=True)
    assert all(text in str(caught.value) for text in ("layers.1.up.weight", "crown.weight", "model.safetensors"))
    assert "head.weight" not in str(caught.value)
    assert all(parameter.is_meta for parameter in loaded.parameters())
    for device_map in (None, {"": "cpu"}):
        with (
            pytest.warns(UserWarning, match="crown"),
            pytest.warns(UserWarning, match=r"layers\.1\.up\.weight: still on the meta"),
        ):
            load_checkpoint_in_model(loaded, tmp_path, device_map)


def test_a_buffer_that_one_of_its_names_saves_must_be_in_the_checkpoint(tmp_path: Path) -> None:
    """Whichever of its names comes first."""
    model = nn.Sequential(nn.Module(), nn.Module(), nn.Linear(2, 2))
    table = torch.zeros(3)
    model[0].register_buffer("table", table, persistent=False)
    model[1].register_buffer("table", table)
    save_file({f"2.{name}": value for name, value in model[2].state_dict().items()}, tmp_path / "model.safetensors")

    with pytest.raises(CheckpointFileError, match=r"no value for 1\.table"):
        load_checkpoint_in_model(model, tmp_path, strict=True)


def test_a_missing_tensor_cannot_be_dispatched(tmp_path: Path) -> None:
    """The error has its full name and the checkpoint that lacks it."""
    state = untied_state(make("decoder"))
    state.pop("layers.1.up.weight")
    save_file(state, tmp_path / "model.safetensors")

    with (
        pytest.warns(UserWarning, match=r"up\.weight"),
        pytest.raises(ValueError, match=r"layers\.1\.up\.weight") as caught,
    ):
        load_checkpoint_and_dispatch(empty("decoder"), tmp_path, device_map="auto")
    assert str(tmp_path) in str(caught.value)


def test_wrong_shapes_are_all_named_and_nothing_is_loaded(tmp_path: Path) -> None:
    """Both shapes of each tensor, whatever `strict` says."""
    state = untied_state(make("decoder"))
    state["layers.0.up.bias"], state["scale"] = torch.ones(3), torch.ones(1)
    save_file(state, tmp_path / "model.safetensors")
    model = make("decoder")
    before = {name: value.clone() for name, value in model.state_dict().items()}

    with pytest.raises(CheckpointFileError) as caught:
        load_checkpoint_in_model(model, tmp_path, strict=False)
    assert "layers.0.up.bias: [3] in the checkpoint, [32] here" in str(caught.value)
    assert "scale: [1] in the checkpoint, [] here" in str(caught.value)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_a_real_model_keeps_its_parameters(tmp_path: Path) -> None:
    """An optimizer made before holds the loaded values; ties stay."""
    source, model = make("decoder"), KINDS["decoder"]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    load_checkpoint_in_model(model, save(source, tmp_path, "shards"), strict=True)

    held = optimizer.param_groups[0]["params"]
    assert all(a is b for a, b in zip(held, model.parameters(), strict=True))
    assert equal(source, model)
    model({"ids": 1}["ids"] * torch.ones(1, 2, dtype=torch.int64))["scores"].sum().backward()
    optimizer.step()
    assert not equal(source, model)


def test_some_modules_stay_in_float32(tmp_path: Path) -> None:
    """By the name of a module, when the rest becomes a half type."""
    loaded = empty("decoder")
    path = save(make("decoder"), tmp_path, "one file")
    load_checkpoint_in_model(loaded, path, dtype=torch.float16, keep_in_fp32_modules=["norm"])

    kept = {name.split(".")[-2] for name, p in loaded.named_parameters() if p.dtype == torch.float32}
    assert kept == {"norm"}


def test_a_change_of_dtype_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once for each load."""
    path = save(make("decoder"), tmp_path, "one file")
    with caplog.at_level(logging.INFO, logger="accelkit"):
        load_checkpoint_in_model(empty("decoder"), path, dtype=torch.bfloat16)

    assert [record.getMessage() for record in caplog.records] == ["loaded in another dtype: float32 -> bfloat16"]


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "base."])
def test_prefixes_of_wrappers_and_base_models_are_undone(tmp_path: Path, prefix: str) -> None:
    """What DistributedDataParallel, torch.compile, and a model with or without a head put before names."""
    model = make("decoder")
    state = {f"{prefix}{name}": value for name, value in untied_state(model).items()}
    save_file(state, tmp_path / "model.safetensors")
    loaded = empty("decoder")
    loaded.base_model_prefix = "base"
    load_checkpoint_in_model(loaded, tmp_path, strict=True)

    assert equal(model, loaded)


def test_setting_single_tensors() -> None:
    """Dotted names; a value takes the old dtype unless one is given, integers never; class and identity stay."""
    model = make("encoder-decoder")
    before = model.norm.weight
    set_module_tensor_to_device(model, "norm.weight", "cpu", value=torch.ones(16, dtype=torch.float16))
    set_module_tensor_to_device(model, "mask", "cpu", value=torch.zeros(3, dtype=torch.bool), dtype=torch.float16)

    assert model.norm.weight is before
    assert before.dtype == torch.float32
    assert model.mask.dtype == torch.bool
    set_module_tensor_to_device(model, "norm.weight", "cpu", value=torch.ones(16), dtype=torch.bfloat16)
    assert model.norm.weight.dtype == torch.bfloat16
    set_module_tensor_to_device(model, "head.bias", "meta")
    with pytest.raises(ValueError, match=r"head\.bias is on the meta device"):
        set_module_tensor_to_device(model, "head.bias", "cpu")
    with pytest.raises(ValueError, match=r"Trying to set a tensor of shape \(3,\) in head\.bias"):
        set_module_tensor_to_device(model, "head.bias", "cpu", value=torch.ones(3))
    with pytest.raises(ValueError, match="nothing"):
        set_module_tensor_to_device(model, "head.nothing", "cpu")


COUNTERS = """
import gc, json, sys, threading
from pathlib import Path
import torch
from torch import nn
from accelkit import init_empty_weights, load_checkpoint_and_dispatch

def status(file, key):
    return next(int(line.split()[1]) for line in open(file) if line.startswith(key))

with init_empty_weights():
    model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(12)])
collections = []
real, gc.collect = gc.collect, lambda *a: collections.append(a)
half = {str(index): "cpu" if index < 6 else "disk" for index in range(12)}
written, anonymous = status("/proc/self/io", "write_bytes"), status("/proc/self/status", "RssAnon")
resident = status("/proc/self/status", "RssFile")
load_checkpoint_and_dispatch(model, sys.argv[1], device_map=half, strict=True)
print(json.dumps({
    "written": status("/proc/self/io", "write_bytes") - written,
    "anonymous": status("/proc/self/status", "RssAnon") - anonymous,
    "resident": status("/proc/self/status", "RssFile") - resident,
    "collections": len(collections),
}))
"""


@pytest.mark.slow
def test_loading_half_to_disk_writes_nothing_reads_nothing_and_copies_nothing(tmp_path: Path) -> None:
    """200 MB of weights: 0 bytes written, under 10 MiB of memory of its own, no weight read, gc.collect never called."""
    model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(12)])
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    program = [sys.executable, "-B", "-c", COUNTERS, str(tmp_path)]  # -B: nor the byte code of what it imports first
    done = subprocess.run(program, capture_output=True, check=True, text=True)
    found = json.loads(done.stdout)

    assert found["written"] == 0
    assert found["anonymous"] < 10 * 1024
    assert found["resident"] < 40 * 1024  # code of libraries, not weights
    assert found["collections"] == 0
