"""Damaged folders of torch.distributed.checkpoint: one error that names the file, and the model as it was."""

import pickle
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from accelkit import CheckpointFileError, init_empty_weights, load_checkpoint_in_model

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def model() -> nn.Module:
    """A small model."""
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))


def saved(folder: Path) -> Path:
    """The file of values that torch writes for it."""
    dcp.save({"model": model().state_dict()}, checkpoint_id=folder, no_dist=True)
    return next(folder.glob("*.distcp"))


def cut(file: Path) -> None:
    """Its second half is lost."""
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def spoil(file: Path) -> None:
    """As long as before, but no archive any more from the middle on."""
    content = file.read_bytes()
    half = len(content) // 2
    file.write_bytes(content[:half] + bytes(len(content) - half))


def refused(folder: Path, said: str) -> None:
    """A real model and an empty one stay as they are."""
    real = model()
    before = {name: value.clone() for name, value in real.state_dict().items()}
    with init_empty_weights():
        empty = model()
    for loaded in (real, empty):
        with pytest.raises(CheckpointFileError, match=said):
            load_checkpoint_in_model(loaded, folder)
    assert all(torch.equal(before[name], value) for name, value in real.state_dict().items())
    assert all(parameter.is_meta for parameter in empty.parameters())


@pytest.mark.parametrize(
    ("damage", "said"), [(cut, "is cut short"), (Path.unlink, "which is not there"), (spoil, "cannot be read from")]
)
def test_damaged_files_of_values(tmp_path: Path, damage: Callable[[Path], None], said: str) -> None:
    """Cut, deleted, or rubbish of the same length."""
    file = saved(tmp_path)
    damage(file)

    refused(tmp_path, rf"{said}|{file.name}")
    with pytest.raises(CheckpointFileError, match=file.name) as caught:
        load_checkpoint_in_model(model(), tmp_path)
    assert said in str(caught.value)


def test_a_table_that_lies(tmp_path: Path) -> None:
    """About parts that are lacking, and files outside the folder."""
    saved(tmp_path / "inside")
    path = tmp_path / "inside" / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    chunks = metadata.state_dict_metadata["model.0.weight"].chunks
    kept = list(chunks)
    chunks.clear()
    path.write_bytes(pickle.dumps(metadata))
    refused(tmp_path / "inside", r"the parts of model\.0\.weight do not make it up")

    chunks.extend(kept)
    for place in metadata.storage_data.values():
        place.relative_path = f"../{place.relative_path}"
    path.write_bytes(pickle.dumps(metadata))
    refused(tmp_path / "inside", "outside its folder")


def test_a_table_with_any_byte_changed(tmp_path: Path) -> None:
    """Either the change does not matter, or it is one error of ours; nothing else comes out."""
    saved(tmp_path)
    path = tmp_path / ".metadata"
    content = path.read_bytes()
    choose = random.Random(0)
    for _ in range(300):
        changed = bytearray(content[: choose.randrange(len(content))] if choose.random() < 0.2 else content)
        if changed:
            changed[choose.randrange(len(changed))] = choose.randrange(256)
        path.write_bytes(changed)
        with suppress(CheckpointFileError):
            load_checkpoint_in_model(model(), tmp_path, strict=True)
