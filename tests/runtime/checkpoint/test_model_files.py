"""A model for others to read: shards, ties, and nothing left of earlier saves."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from accelkit import Accelerator, SettingError, UnsupportedError
from accelkit.runtime.checkpoint import modelfiles
from tests.support.checkpoints import Tied, make_run

SIZES = [1000, "1KB", "2KB", "500", "10GB", 100]


def read(folder: Path) -> dict[str, torch.Tensor]:
    """What another program finds."""
    index = [*folder.glob("*.index.json")]
    files = sorted(set(json.loads(index[0].read_text())["weight_map"].values())) if index else []
    files = files or [path.name for path in folder.iterdir()]
    found = {}
    for name in files:
        path = folder / name
        found |= load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=True)
    return found


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_what_is_written_is_the_model(tmp_path: Path, size: int | str, safe: bool) -> None:
    """For every limit: all tensors, each once, in files no larger than the limit; the index lists them and no others."""
    acc = Accelerator()
    model = acc.prepare(Tied(12))
    acc.save_model(model, tmp_path, max_shard_size=size, safe_serialization=safe)
    found, state = read(tmp_path), model.state_dict()

    assert {name: value.shape for name, value in found.items()} == {
        name: value.shape for name, value in state.items() if not (safe and name == "head.weight")
    }
    assert all(torch.equal(value, state[name]) for name, value in found.items())
    index = [*tmp_path.glob("*.index.json")]
    if index:
        body = json.loads(index[0].read_text())
        assert set(body["weight_map"]) == set(found)
        assert body["metadata"]["total_size"] == sum(v.nbytes for k, v in state.items() if k != "head.weight")
        assert {path.name for path in tmp_path.iterdir()} == {index[0].name, *body["weight_map"].values()}
    else:
        assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors" if safe else "pytorch_model.bin"]


def test_one_save_one_set_of_files(tmp_path: Path) -> None:
    """After any two saves of different kinds there are the files of the second only, and files of others stay."""
    acc = Accelerator()
    model = acc.prepare(Tied(12))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model_card.md").write_text("mine")
    kinds = [("1KB", True), (10**9, True), ("2KB", True), (300, False), ("1KB", False), (10**9, False)]
    alone = {}
    for kind in kinds:
        folder = tmp_path.with_name(f"{kind[0]}-{kind[1]}")
        acc.save_model(model, folder, *kind)
        alone[kind] = {path.name for path in folder.iterdir()}
    for first, second in pairwise([*kinds, *reversed(kinds), kinds[0], kinds[3], kinds[1], kinds[4]]):
        acc.save_model(model, tmp_path, *first)
        acc.save_model(model, tmp_path, *second)
        assert {path.name for path in tmp_path.iterdir()} == {*alone[second], "config.json", "model_card.md"}


def test_ties_are_said(tmp_path: Path) -> None:
    """The file's metadata names what shares a tensor, as other programs of this format read it."""
    acc = Accelerator()
    acc.save_model(acc.prepare(Tied()), tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "head.weight": "embed.weight"}
    blank = Tied()
    from safetensors.torch import load_model

    assert load_model(blank, tmp_path / "model.safetensors") == (set(), [])


@pytest.mark.parametrize("lengths", [[], [1], [5, 5], [9, 1, 1], [1, 9, 1], [3, 3, 3, 3], [0, 0, 4], [4, 0, 4]])
@pytest.mark.parametrize("limit", range(1, 11))
def test_shards(lengths: list[int], limit: int) -> None:
    """Every tensor has exactly one place, in order; no file is over the limit unless by a single tensor; none is needlessly cut."""
    sizes = {f"t{index}": length for index, length in enumerate(lengths)}
    shards = modelfiles.split(sizes, limit, "model", ".safetensors")
    assert [name for names in shards.files.values() for name in names] == list(sizes)
    filled = [[sizes[name] for name in names] for names in shards.files.values()]
    assert all(sum(f) <= limit or len([s for s in f if s]) == 1 for f in filled)
    assert all(sum(one) + other[0] > limit for one, other in pairwise(filled))
    assert shards.total == sum(lengths)
    count = len(shards.files)
    assert list(shards.files) == (
        ["model.safetensors"]
        if count == 1
        else [f"model-{n:05d}-of-{count:05d}.safetensors" for n in range(1, count + 1)]
    )


@pytest.mark.parametrize(
    ("text", "size"),
    [("10GB", 10**10), ("1KB", 1000), ("1KiB", 1024), ("1.5 MiB", 3 * 2**19), ("7", 7), (8, 8), ("2gb", 2 * 10**9)],
)
def test_sizes(text: str | int, size: int) -> None:
    """KB and KiB differ."""
    assert modelfiles.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "-1", "1 parsec", "64000MiBGiB", 0, "0KB"])
def test_sizes_that_are_none(text: str | int) -> None:
    """A bad size is quoted."""
    with pytest.raises(SettingError, match=f"max_shard_size={text!r}"):
        modelfiles.parse_size(text)


def test_what_cannot_be_written(tmp_path: Path) -> None:
    """A file for a folder, weights without values, values that are no tensors: refused by name, and an earlier save stays."""
    acc = Accelerator()
    acc.save_model(acc.prepare(Tied()), tmp_path / "m")
    before = (tmp_path / "m" / "model.safetensors").read_bytes()
    (tmp_path / "file").write_text("x")
    with pytest.raises(SettingError, match="is a file"):
        acc.save_model(Tied(), tmp_path / "file")
    with pytest.raises(UnsupportedError, match=r"is on the meta device"):
        acc.save_model(Tied().to("meta"), tmp_path / "m")

    class Extra(nn.Linear):
        def get_extra_state(self) -> str:
            return "text"

    with pytest.raises(UnsupportedError, match="_extra_state is an object of type str"):
        acc.save_model(Extra(2, 2), tmp_path / "m")
    assert (tmp_path / "m" / "model.safetensors").read_bytes() == before
    acc.save_model(Extra(2, 2), tmp_path / "n", safe_serialization=False)
    assert torch.load(tmp_path / "n" / "pytorch_model.bin")["_extra_state"] == "text"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when it imports its compiler
def test_the_state_of_a_model() -> None:
    """By the model's own names, whatever it is wrapped in; compiled or not."""
    run = make_run()
    assert list(run.accelerator.get_state_dict(run.model)) == list(run.model.state_dict())
    compiled = torch.compile(run.model, backend="eager")
    assert list(run.accelerator.get_state_dict(compiled)) == list(run.model.state_dict())
    assert all(name.startswith("_orig_mod.") for name in run.accelerator.get_state_dict(compiled, unwrap=False))


def test_a_sparse_buffer_is_written_in_torchs_format(tmp_path: Path) -> None:
    """It has no memory of its own by which tied weights are found, and is no reason to fail."""
    model = nn.Linear(2, 2)
    model.register_buffer("mask", torch.eye(2).to_sparse())
    Accelerator(cpu=True).save_model(model, tmp_path, safe_serialization=False)
    found = torch.load(tmp_path / "pytorch_model.bin", weights_only=True)
    assert torch.equal(found["mask"].to_dense(), torch.eye(2))
