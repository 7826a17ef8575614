"""Files of weights: mapped, written, damaged."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from accelkit import CheckpointFileError, init_empty_weights, load_checkpoint_in_model
from accelkit.contract.safetensors_layout import LFS
from accelkit.runtime.bigmodel.checkpoint import open_checkpoint
from accelkit.runtime.bigmodel.mapping import MappedFile, Region, merged, region_of
from accelkit.utils import (
    OffloadedWeightsLoader,
    PrefixedDataset,
    load_offloaded_weight,
    load_state_dict,
    offload_state_dict,
    offload_weight,
    save_offload_index,
)
from tests.support.bigmodels import make, save, untied_state

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
EIGHTS = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)
OTHERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (0, 3), (3, 2), (2, 1, 5))


def every_tensor() -> dict[str, torch.Tensor]:
    """Each dtype in each shape."""
    return {
        f"{str(dtype)[6:]}.{'x'.join(map(str, shape)) or 'scalar'}": torch.randint(0, 2, shape).to(dtype)
        for dtype in (*FLOATS, *EIGHTS, *OTHERS)
        for shape in SHAPES
    }


def same(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Equal in dtype, shape and every value."""
    return first.dtype == second.dtype and first.shape == second.shape and torch.equal(first, second)


@pytest.mark.parametrize("copy", [False, True])
def test_every_dtype_and_shape_comes_back_from_safetensors(tmp_path: Path, copy: bool) -> None:
    """As views of the file, or as copies; writing to either leaves the file as it is."""
    tensors = every_tensor()
    save_file(tensors, tmp_path / "model.safetensors")
    before = (tmp_path / "model.safetensors").read_bytes()
    found = load_state_dict(tmp_path / "model.safetensors", copy=copy)

    assert list(found) == sorted(found, key=list(found).index)
    assert set(found) == set(tensors)
    assert all(same(tensors[name], found[name]) for name in tensors)
    full = [name for name, tensor in tensors.items() if tensor.numel()]
    assert all((region_of(found[name]) is None) == copy for name in full)
    for name in full:
        found[name].fill_(1)
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_every_dtype_and_shape_comes_back_from_an_offload_folder(tmp_path: Path) -> None:
    """Bit for bit, by `offload_state_dict` and by single weights; values are views of the files."""
    tensors = every_tensor()
    offload_state_dict(tmp_path, tensors)
    loader = OffloadedWeightsLoader(save_folder=tmp_path)
    index: dict[str, Any] = {}
    offload_weight(torch.tensor(2.5, dtype=torch.bfloat16), "one", tmp_path / "other", index)
    save_offload_index(index, tmp_path / "other")

    assert all(same(tensors[name], loader[name]) for name in tensors)
    assert len(loader) == len(tensors)
    assert load_offloaded_weight(tmp_path / "other" / "one.dat", index["one"]).item() == 2.5
    assert json.loads((tmp_path / "other" / "index.json").read_text()) == {"one": {"dtype": "bfloat16", "shape": []}}
    assert not list(tmp_path.glob(".*"))


def test_a_loader_reads_memory_folders_and_safetensors(tmp_path: Path) -> None:
    """State dict, index and safetensors entries under one mapping; prefixes are taken off."""
    save_file({"a.w": torch.ones(2)}, tmp_path / "x.safetensors")
    index = {"m.b": {"safetensors_file": str(tmp_path / "x.safetensors"), "weight_name": "a.w", "dtype": "float16"}}
    loader = OffloadedWeightsLoader(state_dict={"m.a": torch.zeros(1)}, index=index)

    assert list(PrefixedDataset(loader, "m.")) == ["a", "b"]
    assert same(PrefixedDataset(loader, "m.")["b"], torch.ones(2, dtype=torch.float16))
    with pytest.raises(ValueError, match="Need either a `state_dict`"):
        OffloadedWeightsLoader()


def header(entries: dict[str, Any], data: bytes, text: str | None = None) -> bytes:
    """A safetensors file of this header."""
    raw = (text or json.dumps(entries)).encode()
    return len(raw).to_bytes(8, "little") + raw + data


W = '{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'
GOOD = {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
DAMAGED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "is empty"),
    "no header": (b"abc", "cut short"),
    "a header longer than the file": ((10**9).to_bytes(8, "little") + b"{}", "cut short"),
    "no json": (header({}, b"", "{rubbish"), "cannot be understood"),
    "a list": (header({}, b"", "[1, 2]"), "not a table"),
    "half of the data": (header(GOOD, b"1234"), "cut short"),
    "data that nobody names": (header(GOOD, b"1" * 12), "belong to no tensor"),
    "a size that is a lie": (header({"w": {**GOOD["w"], "shape": [3]}}, b"1" * 8), "not its size"),
    "a negative size": (header({"w": {**GOOD["w"], "shape": [-2]}}, b"1" * 8), "not its size"),
    "a huge size": (header({"w": {**GOOD["w"], "shape": [2**40, 2**40]}}, b"1" * 8), "not its size"),
    "an unknown dtype": (header({"w": {**GOOD["w"], "dtype": "F7"}}, b"1" * 8), "cannot be understood"),
    "an entry that is none": (header({"w": 5}, b"1" * 8), "cannot be understood"),
    "overlapping tensors": (header({**GOOD, "v": GOOD["w"]}, b"1" * 8), "does not begin where"),
    "a gap": (header({"w": {**GOOD["w"], "data_offsets": [4, 12]}}, b"1" * 12), "does not begin where"),
    "a name twice": (
        header({}, b"1" * 16, '{"w":' + W + ',"w":' + W + "}"),
        "'w' stands there twice",
    ),
    "a pointer": (LFS + b"https://git-lfs.github.com/spec/v1\nsize 4\n", "a pointer of Git LFS: fetch"),
    "another framework": (header({"__metadata__": {"format": "tf"}, **GOOD}, b"1" * 8), "'tf'"),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_file_is_one_error_that_names_it(tmp_path: Path, what: str) -> None:
    """Nothing is loaded, the model is as it was."""
    content, said = DAMAGED[what]
    (tmp_path / "model.safetensors").write_bytes(content)
    model = nn.Linear(2, 1)
    before = model.weight.clone()

    with pytest.raises(CheckpointFileError, match=said) as caught:
        load_checkpoint_in_model(model, tmp_path / "model.safetensors")
    assert str(tmp_path / "model.safetensors") in str(caught.value)
    assert torch.equal(model.weight, before)


def test_a_pointer_in_the_place_of_a_torch_file_is_told(tmp_path: Path) -> None:
    """What torch would say of it is about code that could run."""
    (tmp_path / "pytorch_model.bin").write_bytes(DAMAGED["a pointer"][0])
    with pytest.raises(CheckpointFileError, match="a pointer of Git LFS: fetch the file itself"):
        load_checkpoint_in_model(nn.Linear(2, 1), tmp_path)


@pytest.mark.parametrize("length", [0, 5, 8, 40, 200, -1])
def test_a_cut_shard_is_found_before_anything_is_loaded(tmp_path: Path, length: int) -> None:
    """Whatever is left of the second shard, the first is not loaded either."""
    model = make("decoder")
    save(model, tmp_path, "shards")
    whole = (tmp_path / "b.safetensors").read_bytes()
    (tmp_path / "b.safetensors").write_bytes(whole[:length])
    with init_empty_weights():
        empty = type(model)()

    with pytest.raises(CheckpointFileError, match=r"b\.safetensors"):
        load_checkpoint_in_model(empty, tmp_path)
    assert all(parameter.is_meta for parameter in empty.parameters())


def change_index(folder: Path, name: str, file: str) -> None:
    """Let the index say that a tensor is elsewhere."""
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"][name] = file
    path.write_text(json.dumps(index))


@pytest.mark.parametrize(
    "file", ["../outside.safetensors", "/etc/passwd", "a/../../x.safetensors", "..\\x.safetensors", ""]
)
def test_nothing_outside_the_folder_is_read(tmp_path: Path, file: str) -> None:
    """A path that leaves the folder is refused, although a file is there."""
    save(make("decoder"), tmp_path / "inside", "shards")
    save_file({"scale": torch.ones(())}, tmp_path / "outside.safetensors")
    change_index(tmp_path / "inside", "scale", file)

    with pytest.raises(CheckpointFileError, match="outside its folder"):
        open_checkpoint(tmp_path / "inside")


def test_an_index_that_names_what_is_not_there(tmp_path: Path) -> None:
    """A missing file, and a tensor that is in another file, are named."""
    save(make("decoder"), tmp_path, "shards")
    change_index(tmp_path, "scale", "c.safetensors")
    with pytest.raises(CheckpointFileError, match=r"names c\.safetensors, which is not there"):
        open_checkpoint(tmp_path)
    change_index(tmp_path, "scale", "a.safetensors")
    change_index(tmp_path, "layers.2.down.bias", "a.safetensors")
    with pytest.raises(CheckpointFileError, match=r"layers\.2\.down\.bias \(in a\.safetensors\)"):
        open_checkpoint(tmp_path)


def test_folders_with_none_or_two_checkpoints(tmp_path: Path) -> None:
    """Both are refused, with what was found; safetensors go before the same model as .bin."""
    with pytest.raises(ValueError, match="holds no checkpoint"):
        open_checkpoint(tmp_path)
    with pytest.raises(ValueError, match="no such checkpoint"):
        open_checkpoint(tmp_path / "nowhere")
    torch.save({"w": torch.zeros(1)}, tmp_path / "pytorch_model.bin")
    save_file({"w": torch.ones(1)}, tmp_path / "model.safetensors")
    assert open_checkpoint(tmp_path).tensors["w"].read().item() == 1
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"w": "other.safetensors"}}')
    with pytest.raises(
        ValueError, match=r"more than one checkpoint: model\.safetensors, model\.safetensors\.index\.json"
    ):
        open_checkpoint(tmp_path)


def test_files_of_torch_run_no_code(tmp_path: Path) -> None:
    """A pickle of something else than tensors, rubbish, and a file that is cut are refused."""
    torch.save({"w": torch.zeros(1), "other": print}, tmp_path / "code.bin")
    torch.save({"w": torch.zeros(1), "step": 5}, tmp_path / "more.bin")
    torch.save({"w": torch.zeros(1000)}, tmp_path / "whole.bin")
    (tmp_path / "cut.bin").write_bytes((tmp_path / "whole.bin").read_bytes()[:2000])
    (tmp_path / "rubbish.bin").write_bytes(b"rubbish")

    for name in ("code", "more", "cut", "rubbish"):
        with pytest.raises(CheckpointFileError, match=name):
            open_checkpoint(tmp_path / f"{name}.bin")


def test_an_offload_file_of_another_length_is_refused(tmp_path: Path) -> None:
    """A file that was cut or replaced is never read as if it were whole."""
    offload_state_dict(tmp_path, {"w": torch.ones(3)})
    (tmp_path / "w.dat").write_bytes(b"1" * 8)

    with pytest.raises(CheckpointFileError, match=r"w\.dat has 8 bytes where the index says \[3\]"):
        OffloadedWeightsLoader(save_folder=tmp_path)["w"]
    with pytest.raises(ValueError, match="on the meta device"):
        offload_weight(torch.empty(2, device="meta"), "m", tmp_path)
    with pytest.raises(ValueError, match="cannot be the name of a file"):
        offload_weight(torch.ones(2), "../m", tmp_path)


def test_pages_are_dropped_only_when_nothing_was_written_to_them(tmp_path: Path) -> None:
    """Dropped pages come back from the file; pages that this process changed stay with their values."""
    value = torch.arange(10_000, dtype=torch.float32)
    save_file({"w": value}, tmp_path / "x.safetensors")
    tensor = load_state_dict(tmp_path / "x.safetensors")["w"]
    region = region_of(tensor)
    assert region is not None
    region.will_need()
    region.make_ready()

    assert region.drop()
    assert torch.equal(tensor, value)
    tensor[5000] = -1
    assert not region.drop()
    assert tensor[5000] == -1


def test_regions_of_neighbours_are_merged(tmp_path: Path) -> None:
    """Tensors side by side in one file are one region; plain memory and empty tensors have none."""
    save_file({f"{index}": torch.ones(100) for index in range(4)}, tmp_path / "x.safetensors")
    tensors = load_state_dict(tmp_path / "x.safetensors")
    regions = [region_of(tensor) for tensor in tensors.values()]

    assert [region.size for region in merged(region for region in regions if region)] == [1600]
    assert region_of(torch.ones(3)) is None
    assert region_of(torch.empty(0)) is None
    assert isinstance(regions[0], Region)


def test_a_mapping_outlives_its_file_object(tmp_path: Path) -> None:
    """A tensor keeps the mapping alive, also when the file is deleted."""
    (tmp_path / "raw").write_bytes(bytes(range(16)))
    tensor = MappedFile(tmp_path / "raw").tensor(4, torch.uint8, (4,))
    (tmp_path / "raw").unlink()

    assert tensor.tolist() == [4, 5, 6, 7]
    assert untied_state(nn.Linear(1, 1)).keys() == {"weight", "bias"}


@pytest.mark.parametrize("copy", [False, True])
def test_conjugate_and_negated_tensors_of_a_torch_file(tmp_path: Path, copy: bool) -> None:
    """Torch saves such tensors as they lie in memory, with a mark; the mark counts also where the file is mapped."""
    plain = torch.view_as_complex(torch.tensor([[1.0, 2.0]]))
    state = {"plain": plain, "conjugate": plain.conj(), "negated": plain.clone().conj().imag}
    torch.save(state, tmp_path / "x.bin")
    found = load_state_dict(tmp_path / "x.bin", copy=copy)

    assert {name: value.tolist() for name, value in found.items()} == {
        "plain": [1 + 2j],
        "conjugate": [1 - 2j],
        "negated": [-2.0],
    }
