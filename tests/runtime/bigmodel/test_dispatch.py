"""Dispatched models: every placement computes what the model in memory does."""

import copy
import gc
import inspect
import io
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from accelkit import (
    cpu_offload,
    disk_offload,
    dispatch_model,
    init_empty_weights,
    load_checkpoint_and_dispatch,
)
from accelkit.hooks import remove_hook_from_module
from accelkit.runtime.bigmodel.mapping import region_of
from accelkit.utils import find_tied_parameters, get_state_dict_offloaded_model, iterate_state_dict
from tests.support.bigmodels import FORMS, KINDS, ids, make, save, scores

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def halves(model: nn.Module) -> dict[str, str]:
    """Every second part on disk, down to single tensors of the root."""
    parts = [name for name, _ in model.named_children()]
    parts += [name for name, _ in model.named_parameters(recurse=False)]
    parts += [name for name, _ in model.named_buffers(recurse=False)]
    return {name: ("cpu", "disk")[index % 2] for index, name in enumerate(parts)}


PLACEMENTS: dict[str, Callable[[nn.Module], Any]] = {
    "cpu": lambda _: {"": "cpu"},
    "disk": lambda _: {"": "disk"},
    "halves": halves,
    "auto": lambda _: "auto",
    "sequential": lambda _: "sequential",
}


def loaded(kind: str, path: Path, placement: str, **options: Any) -> nn.Module:
    """A model of that kind from a checkpoint, placed."""
    with init_empty_weights():
        model = KINDS[kind]().eval()
    limits = {"max_memory": {"cpu": 9000}} if placement == "sequential" else {}
    return load_checkpoint_and_dispatch(model, path, PLACEMENTS[placement](model), strict=True, **limits, **options)


@pytest.mark.parametrize(
    ("placement", "form"),
    [*((placement, "shards") for placement in PLACEMENTS), *(("halves", form) for form in FORMS if form != "shards")],
)
@pytest.mark.parametrize("kind", KINDS)
def test_every_placement_gives_the_same_bits(tmp_path: Path, kind: str, placement: str, form: str) -> None:
    """Again and again, with a small budget too, and after the dispatched model is saved and loaded again."""
    model = make(kind)
    expected = scores(model)
    path = save(model, tmp_path / "checkpoint", form)
    for budget in (None, 1, "5KB"):
        placed = loaded(kind, path, placement, offload_folder=tmp_path / "offload", resident_memory=budget)
        assert all(torch.equal(scores(placed), expected) for _ in range(3))
        assert find_tied_parameters(placed) == find_tied_parameters(model)
        assert not any(tensor.is_meta for tensor in placed.state_dict().values())
    again = loaded(kind, save(placed, tmp_path / "again", "one file"), placement)
    assert torch.equal(scores(again), expected)
    state = get_state_dict_offloaded_model(placed)
    assert list(state) == list(model.state_dict())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_cast_at_load_are_the_same_on_disk_and_in_memory(tmp_path: Path, dtype: torch.dtype) -> None:
    """What must be written is written once; the model on disk computes what the cast model does."""
    path = save(make("decoder"), tmp_path / "checkpoint", "shards")
    expected = scores(make("decoder").to(dtype))

    for placement in ("cpu", "disk", "halves"):
        placed = loaded("decoder", path, placement, offload_folder=tmp_path / "offload", dtype=dtype)
        placed.angles = placed.angles.to(dtype)
        assert torch.equal(scores(placed), expected)


@pytest.mark.parametrize("placement", ["cpu", "disk", "halves"])
def test_several_threads_run_one_model(tmp_path: Path, placement: str) -> None:
    """Four threads, with a budget that drops pages under each other."""
    model = make("encoder-decoder")
    expected = scores(model)
    placed = loaded("encoder-decoder", save(model, tmp_path, "shards"), placement, resident_memory=3000)
    wrong: list[int] = []

    def run(number: int) -> None:
        wrong.extend(number for _ in range(25) if not torch.equal(scores(placed), expected))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_copies_and_pickles_are_models_of_their_own(tmp_path: Path) -> None:
    """Changing a copy does not change the original; a copy runs its own weights, with its own hooks, when the original is gone."""
    model = make("decoder")
    expected = scores(model)
    placed = loaded("decoder", save(model, tmp_path, "shards"), "halves", resident_memory=2000)
    buffer = io.BytesIO()
    torch.save(placed, buffer)
    copied = copy.deepcopy(placed)
    zeroed = copy.deepcopy(placed)
    with torch.no_grad():
        for parameter in zeroed.parameters():
            parameter.zero_()

    assert torch.equal(scores(placed), expected)
    assert not torch.equal(scores(zeroed), expected)
    assert copied.forward.module is copied
    assert copied.head.weight is copied.embedding.weight
    del placed, zeroed
    gc.collect()
    assert torch.equal(scores(copied), expected)
    buffer.seek(0)
    assert torch.equal(scores(torch.load(buffer, weights_only=False)), expected)


@pytest.mark.parametrize("placement", ["disk", "halves"])
def test_removing_hooks_gives_the_model_back_whole(tmp_path: Path, placement: str) -> None:
    """No attribute of ours is left, tensors have their values, and it can be moved and trained."""
    model = make("encoder-decoder")
    placed = loaded("encoder-decoder", save(model, tmp_path, "shards"), placement)
    added = set(placed.__dict__) - set(model.__dict__)
    remove_hook_from_module(placed, recurse=True)

    assert added == {"_hf_hook", "_old_forward", "_hooked_forward", "forward", "to", "cuda", "cpu", "hf_device_map"}
    assert set(placed.__dict__) == set(model.__dict__)
    assert not any("forward" in module.__dict__ for module in placed.modules())
    assert torch.equal(scores(placed), scores(model))
    placed.double()(ids())["scores"].sum().backward()
    assert placed.shared.weight.grad is not None


def test_forward_keeps_its_signature_and_arguments(tmp_path: Path) -> None:
    """Also by keyword; what the caller passes to be filled in is filled in, not a copy of it."""
    placed = loaded("decoder", save(make("decoder"), tmp_path, "shards"), "disk")
    extra: dict[str, Any] = {}
    placed(ids=ids(), extra=extra)

    assert inspect.signature(placed.forward) == inspect.signature(make("decoder").forward)
    assert placed.forward.__name__ == "forward"
    assert extra == {"layers": 3}


def test_training_what_is_offloaded_is_refused(tmp_path: Path) -> None:
    """A backward says so; outputs can be changed in place; with frozen weights there is nothing to refuse."""
    path = save(make("decoder"), tmp_path, "shards")
    placed = loaded("decoder", path, "halves")
    output = placed(ids())["scores"]
    output += 1

    with pytest.raises(RuntimeError, match="backward through Decoder, which is partly offloaded"):
        output.sum().backward()
    assert not placed.requires_grad_(False)(ids())["scores"].requires_grad
    whole = loaded("decoder", path, "cpu")
    whole(ids())["scores"].sum().backward()
    assert whole.scale.grad is not None


def test_one_device_installs_no_hooks_unless_forced(tmp_path: Path) -> None:
    """The model is as if it had been loaded by hand; `force_hooks` and the disk install them."""
    path = save(make("decoder"), tmp_path, "shards")

    assert not hasattr(loaded("decoder", path, "cpu"), "_hf_hook")
    assert hasattr(loaded("decoder", path, "cpu", force_hooks=True), "_hf_hook")
    assert hasattr(loaded("decoder", path, "disk"), "_hf_hook")
    assert loaded("decoder", path, "cpu").hf_device_map == {"": "cpu"}


def test_moving_a_dispatched_model_is_refused(tmp_path: Path) -> None:
    """To where it is, and to a dtype, it may go."""
    placed = loaded("decoder", save(make("decoder"), tmp_path, "shards"), "halves")

    assert placed.to("cpu") is placed
    for move in (
        lambda: placed.to("meta"),
        placed.cuda,
        lambda: placed.cuda("cuda:0"),
        lambda: placed.cuda(device=1),
        lambda: placed.to(device="meta", dtype=torch.half),
    ):
        with pytest.raises(RuntimeError, match="remove_hook_from_module"):
            move()
    assert placed.to(torch.float64).scale.dtype == torch.float64


def test_weights_changed_in_place_stay_changed(tmp_path: Path) -> None:
    """Under a budget that drops what it can, and without changing the file."""
    path = save(make("decoder"), tmp_path, "one file")
    before = path.read_bytes()
    placed = loaded("decoder", path, "disk", resident_memory=1)
    with torch.no_grad():
        for parameter in placed.parameters():
            parameter.mul_(0.5)
    expected = scores(placed)

    assert not torch.equal(expected, scores(make("decoder")))
    assert all(torch.equal(scores(placed), expected) for _ in range(3))
    assert path.read_bytes() == before


def test_a_real_model_goes_to_disk_and_back(tmp_path: Path) -> None:
    """disk_offload writes each tied tensor once; a second model on meta uses what lies there; hooks off: as before."""
    model, expected = make("encoder-decoder"), scores(make("encoder-decoder"))
    disk_offload(model, tmp_path)
    with init_empty_weights(include_buffers=True):
        empty = KINDS["encoder-decoder"]().eval()

    assert torch.equal(scores(model), expected)
    assert len(list(tmp_path.glob("*shared*"))) + len(list(tmp_path.glob("*embed*"))) == 1
    files = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert region_of(model.norm.weight.detach()) is not None
    remove_hook_from_module(model, recurse=True)
    assert torch.equal(scores(model), expected)
    with pytest.raises(ValueError, match=r"without a value: .*running_mean"):
        disk_offload(empty, tmp_path)
    with init_empty_weights():
        empty = KINDS["encoder-decoder"]()
    empty.norm.running_mean.copy_(model.norm.running_mean)
    assert torch.equal(scores(disk_offload(empty.eval(), tmp_path)), expected)
    assert files == {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}


def test_offloading_twice_or_from_meta(tmp_path: Path) -> None:
    """What is on disk can be dispatched again; tensors without a value are named; cpu_offload takes them from a state dict."""
    model = loaded("decoder", save(make("decoder"), tmp_path, "shards"), "halves")
    with init_empty_weights():
        empty = KINDS["decoder"]().eval()

    assert torch.equal(scores(disk_offload(model, tmp_path / "more")), scores(make("decoder")))
    with pytest.raises(ValueError, match=r"without a value: scale, .*layers\.2\.down\.bias"):
        disk_offload(empty, tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    state = make("decoder").state_dict()
    assert torch.equal(scores(cpu_offload(empty, state_dict=state)), scores(make("decoder")))


def test_maps_with_gaps_and_disks_without_folders_are_refused(tmp_path: Path) -> None:
    """Before anything moves."""
    model = make("decoder")
    with pytest.raises(ValueError, match=r"layers\.0\.norm\.weight"):
        dispatch_model(model, {"embedding": "cpu", "scale": "cpu"})
    with pytest.raises(ValueError, match="an offload_dir is needed"):
        dispatch_model(model, {"": "disk"})
    with pytest.raises(ValueError, match="'everywhere': must be one of 'auto'"):
        load_checkpoint_and_dispatch(model, save(model, tmp_path, "shards"), device_map="everywhere")
    assert not hasattr(model, "_hf_hook")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64, torch.bool])
def test_every_dtype_scalars_and_empty_tensors_go_to_disk(tmp_path: Path, dtype: torch.dtype) -> None:
    """Bit for bit, as buffers and as parameters."""

    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, shape in (("scalar", ()), ("empty", (0, 3)), ("table", (3, 5))):
                value = torch.randint(0, 2, shape).to(dtype)
                self.register_buffer(name, value)
                setattr(self, f"{name}_p", nn.Parameter(value.clone(), requires_grad=False))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.table.sum()

    model = Holder()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    disk_offload(model, tmp_path, offload_buffers=True)
    model(torch.ones(1))

    assert {name for name, value in model.state_dict().items() if region_of(value) is not None} == {
        "scalar", "table", "scalar_p", "table_p",
    }  # fmt: skip
    for name, value in iterate_state_dict(model):
        assert value.dtype == dtype
        assert torch.equal(value, before[name])


def test_a_forward_that_fails_leaves_the_model_usable(tmp_path: Path) -> None:
    """An input that does not fit raises; the next forward is right."""
    placed = loaded("decoder", save(make("decoder"), tmp_path, "shards"), "disk", resident_memory=2000)
    with pytest.raises(IndexError):
        placed(torch.full((1, 1), 10_000))

    assert torch.equal(scores(placed), scores(make("decoder")))


@pytest.mark.slow
def test_compiled_models_compute_the_same(tmp_path: Path) -> None:
    """In one graph, hooks and all."""
    model = make("decoder")
    placed = loaded("decoder", save(model, tmp_path, "shards"), "halves")
    compiled = torch.compile(placed, backend="eager", fullgraph=True)

    with torch.no_grad():
        assert torch.equal(compiled(ids())["scores"], scores(model))
        assert torch.equal(compiled(ids())["scores"], scores(model))


def test_an_older_folder_of_another_shape_is_not_taken(tmp_path: Path) -> None:
    """Weights in the offload folder count only where name and shape fit."""
    disk_offload(nn.Linear(3, 3), tmp_path)
    model = nn.Linear(4, 4)
    expected = model.weight.detach().clone()
    disk_offload(model, tmp_path)

    assert torch.equal(model.weight, expected)
    save_file({"unused": torch.ones(1)}, tmp_path / "x.safetensors")


BUDGET = """
import json, sys
import torch
from torch import nn
from accelkit import init_empty_weights, load_checkpoint_and_dispatch

def resident():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssFile")) // 1024

with init_empty_weights():
    model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(12)])
model = load_checkpoint_and_dispatch(model, sys.argv[1], {"": "disk"}, resident_memory=json.loads(sys.argv[2]))
x = torch.ones(1, 2048)
nn.Linear(2048, 2048)(x)  # what computing needs of libraries
before, after = resident(), []
model[0].register_forward_pre_hook(lambda *_: after.append(resident()))
for layer in model:
    layer.register_forward_hook(lambda *_: after.append(resident()))
for _ in range(3):
    model(x)
print(max(after) - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("budget", "low", "high"), [("48MiB", 0, 56), (None, 57, 400)])
def test_memory_stays_within_the_budget(tmp_path: Path, budget: str | None, low: int, high: int) -> None:
    """Of 192 MiB on disk no more than the budget is in memory at any time; without one, more is: as much as the system leaves."""
    model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(12)])
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    done = subprocess.run(
        [sys.executable, "-c", BUDGET, str(tmp_path), json.dumps(budget)], capture_output=True, check=True, text=True
    )

    assert low <= int(done.stdout) <= high


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_brought_to_another_device_and_back(kind: str) -> None:
    """With meta as a device that computes shapes: in each forward weights are there, between forwards they are at home."""
    model = make(kind)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    cpu_offload(model, execution_device="meta", offload_buffers=True)
    for _ in range(2):
        with torch.no_grad():
            assert model(ids().to("meta"))["scores"].shape == (2, 5, 40)
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    for layer in (model.layers[0] if kind == "decoder" else model.encoder["first"],):
        layer.up.register_forward_pre_hook(lambda module, _: seen.append(module.weight.device.type))
    seen: list[str] = []
    with torch.no_grad():
        model(ids().to("meta"))
    assert seen == ["cpu"], "torch's own hooks run before ours: the weights come with forward"
    with pytest.raises(RuntimeError, match="remove_hook_from_module"):
        model.to("meta")
    remove_hook_from_module(model, recurse=True)
    assert torch.equal(scores(model), scores(make(kind)))
