"""Device maps of real module trees, their sizes, and limits."""

import itertools
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from accelkit import SettingError, dispatch_model, infer_auto_device_map, init_empty_weights, load_checkpoint_in_model
from accelkit.runtime.bigmodel.device_map import place_of
from accelkit.runtime.bigmodel.tensors import all_slots
from accelkit.utils import (
    check_device_map,
    clean_device_map,
    compute_module_sizes,
    compute_module_total_buffer_size,
    convert_file_size_to_int,
    dtype_byte_size,
    find_tied_parameters,
    get_balanced_memory,
    get_max_layer_size,
    get_max_memory,
    retie_parameters,
)
from tests.support.bigmodels import KINDS, Layer


class Three(nn.Module):
    """Layers of 64, 72 and 100 bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear1 = nn.Linear(3, 4)
        self.batchnorm = nn.BatchNorm1d(4)
        self.linear2 = nn.Linear(4, 5)


class Bare(nn.Module):
    """Parameters and buffers of the root itself, tied within the root and with a child."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(10))
        self.second = self.first
        self.child = nn.Linear(2, 2)
        self.child.weight = nn.Parameter(torch.zeros(2, 2))
        self.third = self.child.weight
        self.register_buffer("table", torch.zeros(3, dtype=torch.int64))


def tree_of_blocks() -> nn.Module:
    """Blocks that must stay whole, at several depths."""
    inner = nn.ModuleList([nn.ModuleDict({"block": Layer(), "other": nn.Linear(4, 4)}) for _ in range(2)])
    return nn.ModuleDict({"deep": nn.ModuleDict({"deeper": inner}), "block": Layer(), "last": nn.Linear(8, 8)})


MODELS = {**KINDS, "three": Three, "bare": Bare, "blocks": tree_of_blocks}


@pytest.mark.parametrize("name", MODELS)
def test_every_map_places_every_tensor_once_and_overfills_nothing(name: str) -> None:
    """Rooms from nothing to more than the model, with and without classes that stay whole."""
    model = MODELS[name]()
    total = compute_module_sizes(model)[""]
    steps = [0, 100, total // 4, total // 2, total, 2 * total]
    for first, second, cpu in itertools.product(steps, steps, [100, total]):
        for unsplit in ([], ["Layer"]):
            limits = {0: first, 1: second, "cpu": cpu}
            found = infer_auto_device_map(model, limits, no_split_module_classes=unsplit, offload_buffers=True)
            check_device_map(model, found)
            used: dict[object, dict[int, int]] = {}
            for slot in all_slots(model):
                tensor = slot.tensor
                used.setdefault(place_of(found, slot.name), {})[id(tensor)] = tensor.numel() * tensor.element_size()
            sizes = {place: sum(held.values()) for place, held in used.items()}
            assert all(size <= limits.get(place, 10**9) for place, size in sizes.items())
            assert sum(sizes.values()) == total, "a tied tensor has two places"
            for path, module in model.named_modules(remove_duplicate=False):
                if type(module).__name__ in unsplit:
                    assert len({place_of(found, slot.name) for slot in all_slots(module, path)}) == 1


def test_room_for_the_largest_layer_is_kept_on_the_first_accelerator() -> None:
    """Of 64, 72 and 100 bytes, 200 take the first alone; a device that is not the first is filled."""
    model = Three()

    assert infer_auto_device_map(model, {0: 200, 1: 200}) == {"linear1": 0, "batchnorm": 1, "linear2": 1}
    assert infer_auto_device_map(model, {0: 200, 1: 172, 2: 200}) == {"linear1": 0, "batchnorm": 1, "linear2": 1}
    assert infer_auto_device_map(model, {0: 0, 1: 200, 2: 200}) == {"linear1": 1, "batchnorm": 2, "linear2": 2}
    assert infer_auto_device_map(model, {0: 1000}) == {"": 0}


def test_the_map_says_why() -> None:
    """The report has each device's share, and for what was passed on how much lacked where."""
    found = infer_auto_device_map(Three(), {0: 90, "cpu": 200})

    assert "disk" in found.values()
    assert "0: " in found.report
    assert "linear2: needs 100 bytes and goes to" in found.report


def test_buffers_of_offloaded_modules_that_fit_nowhere_are_warned_of() -> None:
    """They stay on the first accelerator, which has to have room."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(200))

    with pytest.warns(UserWarning, match="buffers of offloaded modules take"):
        infer_auto_device_map(model, {0: 100, "cpu": 10**6})


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1KB", 1000), ("1KiB", 1024), ("1.5 GiB", 3 << 29), ("20MB", 20_000_000), ("8Kb", 1000), (17, 17), ("2tib", 2 << 40),
    ],
)  # fmt: skip
def test_sizes_as_people_write_them(text: int | str, size: int) -> None:
    """Units are powers of 1000 or of 1024, a small b means bits."""
    expected = size if not str(text).endswith("b") or text == "8Kb" else size // 8
    assert convert_file_size_to_int(text) == expected


@pytest.mark.parametrize(
    "text", ["64000MiBGiB", "", "GiB", "12", "5 KiX", None, True, -1, "-1GB", float("nan"), float("inf")]
)
def test_a_bad_size_is_quoted(text: object) -> None:
    """The error shows what was given."""
    with pytest.raises(ValueError, match="is not understood") as caught:
        get_max_memory({0: text})  # type: ignore[dict-item]
    assert repr(text) in str(caught.value)


def test_kb_and_kib_differ_for_a_model_between_them() -> None:
    """1008 bytes of weights fit in 1KiB and not in 1KB."""
    model = nn.Linear(252, 1, bias=False)

    assert infer_auto_device_map(model, {0: "1KiB"}) == {"": 0}
    assert infer_auto_device_map(model, {0: "1KB"}) == {"": "disk"}


def test_limits_come_in_order_and_unknown_devices_are_refused() -> None:
    """Accelerators by index, then cpu, then disk; without an argument the CPU's free memory is there."""
    assert list(get_max_memory({"disk": 1, "cpu": 1, 1: 1, 0: 1})) == [0, 1, "cpu", "disk"]
    for key in ("gpu", "CPU", "0", -1, True):
        with pytest.raises(ValueError, match=f"max_memory: {key!r} is no device"):
            get_max_memory({key: 1})
    assert get_max_memory()["cpu"] > 0


def test_limits_may_be_any_kind_of_number() -> None:
    """What torch and numpy give for free memory, and a share of it; the result has Python's own whole numbers."""
    limits = get_max_memory({np.int64(1): np.int64(2000), 0: 0.9 * 10**6, "cpu": np.float32(1000)})
    assert limits == {0: 900000, 1: 2000, "cpu": 1000}
    assert {type(value) for value in (*limits.values(), *list(limits)[:2])} == {int}


@pytest.mark.parametrize("place", ["Disk", "CPU", "gpu", "", "0", -1, True, 3.5, "cuda:4000", 4000])
def test_places_that_are_no_devices_here_are_named_before_anything_moves(tmp_path: Path, place: Any) -> None:
    """Whatever is loaded or moved before them would stay so; what differs by its letters' case alone is told."""
    save_file(Three().state_dict(), tmp_path / "model.safetensors")
    device_map = {"linear1": "cpu", "batchnorm": "cpu", "linear2": place}
    with init_empty_weights():
        model = Three()
    with pytest.raises(SettingError, match=f"device_map puts 'linear2' on {re.escape(repr(place))}") as caught:
        load_checkpoint_in_model(model, tmp_path, device_map)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert ("did you mean" in str(caught.value)) == (place in ("Disk", "CPU"))
    with pytest.raises(SettingError, match="device_map puts 'linear2' on"):
        dispatch_model(Three(), device_map, offload_dir=tmp_path)


def test_a_map_that_is_none_is_refused(tmp_path: Path) -> None:
    """The word for a map that is still to be made is understood where one is made."""
    save_file(Three().state_dict(), tmp_path / "model.safetensors")
    with pytest.raises(SettingError, match="device_map='auto' is no dict"):
        load_checkpoint_in_model(Three(), tmp_path, "auto")  # type: ignore[arg-type]


def test_balanced_limits() -> None:
    """Two devices share evenly with a margin; the last keeps its own limit; `low_zero` keeps the first empty."""
    model = nn.Sequential(*[nn.Linear(10, 10, bias=False) for _ in range(8)])
    limits = {0: 10_000, 1: 10_000, "cpu": 10_000}
    even = get_balanced_memory(model, limits)
    low = get_balanced_memory(model, limits, low_zero=True)

    assert 1600 <= even[0] <= 2200
    assert even[1] == 10_000
    assert low[0] == 0
    assert set(infer_auto_device_map(model, even).values()) == {0, 1}
    assert get_balanced_memory(model, {"cpu": 5}) == {"cpu": 5}


def test_sizes_of_modules() -> None:
    """By every dotted name; dtype shrinks floating tensors only; special dtypes count as given; ties count once."""
    model = Three()
    sizes = compute_module_sizes(model)
    half = compute_module_sizes(model, dtype=torch.float16, special_dtypes={"linear1.weight": torch.float32})

    assert sizes[""] == 236
    assert sizes["batchnorm"] == 72
    assert sizes["batchnorm.num_batches_tracked"] == 8
    assert half["linear1"] == 48 + 8
    assert half["batchnorm.num_batches_tracked"] == 8
    assert compute_module_sizes(model, dtype=torch.float64)[""] == 236
    assert compute_module_total_buffer_size(model) == 40
    tied = compute_module_sizes(KINDS["decoder"]())
    assert tied["head"] == tied["embedding"]
    assert tied[""] < sum(size for name, size in tied.items() if name and "." not in name)
    assert get_max_layer_size(list(model.named_children()), sizes, []) == (100, ["linear2"])
    assert dtype_byte_size(torch.bool) == 1 / 8


def test_ties_are_found_and_made_again() -> None:
    """Names of one parameter in sorted groups; a broken tie is mended with the value that is there."""
    model = KINDS["encoder-decoder"]()
    groups = find_tied_parameters(model)
    model.head.weight = nn.Parameter(torch.empty(40, 16, device="meta"))

    assert groups == [["decoder.embed.weight", "encoder.embed.weight", "head.weight", "shared.weight"]]
    retie_parameters(model, groups)
    assert model.head.weight is model.shared.weight


def test_maps_are_cleaned_and_checked() -> None:
    """Parts on one device become their module; a gap is an error with all names, an idle key a warning."""
    cleaned = clean_device_map({"a.b.0": 0, "a.b.1": 0, "a.c": 1, "d.0": 2, "d.1": 2})

    assert cleaned == {"a.b": 0, "a.c": 1, "d": 2}
    with pytest.raises(ValueError, match=r"linear2\.weight, linear2\.bias"):
        check_device_map(Three(), {"linear1": 0, "batchnorm": 0})
    with pytest.warns(UserWarning, match="ghost"):
        check_device_map(Three(), {"": 0, "ghost": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_device_map(Three(), {"": 0})


def test_a_thousand_layers_are_mapped_at_once() -> None:
    """The order of the layers is kept: each device has a run of them."""
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(1000)])
    found = infer_auto_device_map(model, {0: 100_000, 1: 50_000, "cpu": 60_000})
    order = [place_of(found, f"{index}.weight") for index in range(1000)]

    assert [place for place, _ in itertools.groupby(order)] == [0, 1, "cpu", "disk"]
