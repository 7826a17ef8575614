"""A checkpoint that is not whole is refused, with the file and what is wrong, and nothing is loaded from it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from accelkit import CheckpointError
from tests.support.checkpoints import flip, make_run, same, state_of

FILES = ("model.safetensors", "optimizer.bin", "scheduler.bin", "random_states_0.pkl")
DAMAGES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "missing": ("is missing", lambda path: path.unlink()),
    "renamed": ("is missing", lambda path: path.rename(path.with_suffix(".old"))),
    "cut short": ("bytes instead of", lambda path: path.write_bytes(path.read_bytes()[:-1])),
    "empty": ("bytes instead of", lambda path: path.write_bytes(b"")),
    "longer": ("bytes instead of", lambda path: path.write_bytes(path.read_bytes() + b"x")),
    "first byte": ("are not what was saved", lambda path: flip(path, 0)),
    "last byte": ("are not what was saved", lambda path: flip(path, -1)),
    "middle byte": ("are not what was saved", lambda path: flip(path, path.stat().st_size // 2)),
    "rubbish": ("are not what was saved", lambda path: path.write_bytes(b"?" * path.stat().st_size)),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", FILES)
def test_damage_is_named_and_nothing_is_loaded(tmp_path: Path, file: str, damage: str) -> None:
    """For every file and every damage: the error names the file and the last good checkpoint; the run is as before."""
    run = make_run()
    run.accelerator.save_state(tmp_path / "good")
    run.step(2)
    run.accelerator.save_state(tmp_path / "bad")
    words, do = DAMAGES[damage]
    do(tmp_path / "bad" / file)
    before = state_of(run)

    with pytest.raises(CheckpointError) as caught:
        run.accelerator.load_state(tmp_path / "bad")

    assert file in str(caught.value)
    assert words in str(caught.value)
    assert f"load_state('{tmp_path / 'good'}')" in str(caught.value)
    assert same(state_of(run), before)
    run.accelerator.load_state(tmp_path / "good")


def test_a_manifest_is_believed_only_when_it_is_whole(tmp_path: Path) -> None:
    """Without it, with a changed one, with a later format, the folder is no checkpoint."""
    run = make_run()
    run.accelerator.save_state(tmp_path / "a")
    manifest = tmp_path / "a" / "checkpoint.json"
    text = manifest.read_text()

    def refused(message: str) -> None:
        with pytest.raises(CheckpointError, match=message):
            run.accelerator.load_state(tmp_path / "a")

    manifest.unlink()
    refused("not a complete checkpoint: it has no checkpoint.json")
    for cut in range(0, len(text) - 2, 97):
        manifest.write_text(text[:cut])
        refused("is damaged")
    manifest.write_text(text.replace('"world_size": 1', '"world_size": 2'))
    refused("it is not what was saved")
    manifest.write_text(json.dumps({**json.loads(text), "format": 99}))
    refused("is of format 99")
    manifest.write_text(text)
    run.accelerator.load_state(tmp_path / "a")


def test_files_of_others_are_none_of_ours(tmp_path: Path) -> None:
    """Backups, files of network file systems and of editors are neither loaded nor counted, and stay at the next save."""
    run = make_run()
    folder = tmp_path / "a"
    run.accelerator.save_state(folder)
    for path in list(folder.iterdir()):
        shutil.copyfile(path, path.with_name(path.name + ".bak"))
    (folder / ".nfs000000000123").write_text("x")
    (folder / "custom_checkpoint_7.pkl").write_text("x")
    (folder / "model_1.safetensors").write_text("x")
    before = state_of(run)
    run.step()
    run.accelerator.load_state(folder)
    assert same(state_of(run), before)
    run.accelerator.save_state(folder)
    assert {"model.safetensors.bak", ".nfs000000000123", "model_1.safetensors"} <= {p.name for p in folder.iterdir()}
