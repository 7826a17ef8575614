"""Sharded checkpoints become one model: those of save_state, of torch.distributed.checkpoint with and without a key, of FSDP1."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from accelkit import Accelerator, AcceleratorState, CheckpointError, FullyShardedDataParallelPlugin, SettingError
from accelkit.runtime.checkpoint.merging import merge_fsdp_weights
from tests.support.kit import kit


def model() -> nn.Module:
    """A small one of known values."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


def write_shards(folder: Path, state: dict[str, object]) -> None:
    """What torch.distributed.checkpoint writes."""
    with pytest.warns(UserWarning, match="torch.distributed is disabled"):
        save(state, storage_writer=FileSystemWriter(folder), no_dist=True)


def same(found: dict[str, torch.Tensor]) -> None:
    """All of the model's tensors, and nothing else."""
    wanted = model().state_dict()
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("key", ["model", None])
def test_folders_of_torch(tmp_path: Path, key: str | None) -> None:
    """With the tensors under "model" beside other things, or alone; as one file, as several, as torch's own format."""
    state = dict(model().state_dict())
    write_shards(tmp_path / "in", {key: state, "optimizer": {"step": torch.ones(1)}} if key else state)

    same(load_file(merge_fsdp_weights(tmp_path / "in", tmp_path / "out") / "model.safetensors"))
    merge_fsdp_weights(tmp_path / "in", tmp_path / "out", max_shard_size=60)
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 1
    same({name: value for file in files for name, value in load_file(file).items()})
    merge_fsdp_weights(tmp_path / "in", tmp_path / "bin", safe_serialization=False)
    same(torch.load(tmp_path / "bin" / "pytorch_model.bin", weights_only=True))


def test_a_whole_file_of_the_first_version(tmp_path: Path) -> None:
    """`pytorch_model_fsdp.bin` is the model already; flat parameters of a rank are refused with what to do."""
    torch.save(model().state_dict(), tmp_path / "pytorch_model_fsdp.bin")
    same(load_file(merge_fsdp_weights(tmp_path, tmp_path / "out") / "model.safetensors"))

    (tmp_path / "local").mkdir()
    torch.save({}, tmp_path / "local" / "pytorch_model_fsdp_rank0.bin")
    with pytest.raises(SettingError, match="SHARDED_STATE_DICT"):
        merge_fsdp_weights(tmp_path / "local", tmp_path / "out")


@pytest.mark.slow
def test_what_save_state_wrote_and_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command merges a checkpoint and can remove it; a damaged one is refused, and so is a folder that holds none."""
    accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())
    accelerator.prepare(model())
    accelerator.save_state(tmp_path / "state")
    AcceleratorState._reset_state(reset_partial_state=True)
    done = kit("merge-weights", "state", "out", cwd=tmp_path)
    assert done.code == 0, done.err
    same(load_file(tmp_path / "out" / "model.safetensors"))

    nothing = kit("merge-weights", "out", "other", cwd=tmp_path)
    assert nothing.code == 2
    assert "pytorch_model_fsdp_0" in nothing.err
    shard = next((tmp_path / "state" / "pytorch_model_fsdp_0").glob("*.distcp"))
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    with pytest.raises(CheckpointError, match="distcp"):
        merge_fsdp_weights(tmp_path / "state", tmp_path / "other")
    shard.write_bytes(whole)
    with pytest.raises(SettingError, match="would be removed"):
        merge_fsdp_weights(tmp_path / "state", tmp_path / "state" / "out", remove_checkpoint_dir=True)
    assert kit("merge-weights", "state", "again", "--remove", cwd=tmp_path).code == 0
    assert not (tmp_path / "state").exists()


@pytest.mark.slow
def test_it_needs_no_group_and_no_script() -> None:
    """The module is a program of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "accelkit.runtime.checkpoint.merging", "--help"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert "--max-shard-size" in done.stdout
