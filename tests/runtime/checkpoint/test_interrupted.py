"""A save that is killed at any of its steps on files leaves a checkpoint that loads: the old one or the new one, whole."""

from collections.abc import Callable
from pathlib import Path

import pytest

from accelkit import CheckpointError, ProjectConfiguration, SettingError
from accelkit.runtime.checkpoint import folder, modelfiles, project
from tests.support.checkpoints import Run, die_at, make_run, same, state_of

pytestmark = pytest.mark.slow


def leftovers(home: Path) -> list[str]:
    """Names of folders that are no checkpoint's."""
    return [path.name for path in home.rglob(".*") if path.is_dir()]


def kill_everywhere(work: Callable[[], None], check: Callable[[], None]) -> int:
    """Kill the work before its first step on files, its second, and so on until it comes through; check after each."""
    event = 0
    while die_at(event, work):
        check()
        event += 1
        assert event < 200
    check()
    return event


def two_states(run: Run, target: Path, asynchronous: bool = False) -> tuple[Callable[[], None], Callable[[], None]]:
    """Saving the run as it will be one step on; and checking that what is in `target` is this state or that one."""
    old = state_of(run)
    run.step()
    new = state_of(run)
    found: list[bool] = []

    def save() -> None:
        run.accelerator.save_state(target)

    def check() -> None:
        run.step()
        run.accelerator.load_state(target)
        now = state_of(run)
        assert same(now, old) or same(now, new)
        found.append(same(now, new))
        run.accelerator.load_state(target.with_name("new"))

    run.accelerator.save_state(target.with_name("new"))
    return save, check


def test_over_an_older_checkpoint(tmp_path: Path) -> None:
    """The older one loads until the new one is complete, with everything else in the folder left alone."""
    run = make_run()
    run.step()
    target = tmp_path / "a"
    run.accelerator.save_state(target)
    (target / "notes.txt").write_text("mine")
    (target / "custom_checkpoint_0.pkl").write_text("stale")
    save, check = two_states(run, target)

    assert kill_everywhere(save, check) > 20

    save()
    assert (target / "notes.txt").read_text() == "mine"
    assert leftovers(tmp_path) == []


def test_a_new_folder(tmp_path: Path) -> None:
    """It is there when it is complete, and not before; what was left is swept by the save that comes through."""
    run = make_run()
    run.step()
    wanted = state_of(run)

    def check() -> None:
        if (tmp_path / "a").exists():
            run.step()
            run.accelerator.load_state(tmp_path / "a")
            assert same(state_of(run), wanted)
        else:
            with pytest.raises(SettingError, match="does not exist"):
                run.accelerator.load_state(tmp_path / "a")

    assert kill_everywhere(lambda: run.accelerator.save_state(tmp_path / "a"), check) > 10
    run.accelerator.save_state(tmp_path / "b")
    assert leftovers(tmp_path) == []


def test_with_a_limit(tmp_path: Path) -> None:
    """The newest checkpoint always loads; there are never fewer than the limit; the resumed run counts on and sweeps."""
    config = ProjectConfiguration(str(tmp_path), automatic_checkpoint_naming=True, total_limit=1)
    run = make_run(project_config=config)
    run.step()
    run.accelerator.save_state()

    def check() -> None:
        assert project.numbered(config.checkpoints)
        run.accelerator.load_state()
        run.step()

    assert kill_everywhere(run.accelerator.save_state, check) > 20
    run.accelerator.save_state()
    assert len(project.numbered(config.checkpoints)) == 1
    assert leftovers(tmp_path) == []


def test_a_models_files(tmp_path: Path) -> None:
    """While shards are exchanged there is no index, so that no reader sees some of each save."""
    run = make_run()
    run.accelerator.save_model(run.model, tmp_path, max_shard_size=100)
    index = tmp_path / "model.safetensors.index.json"
    before = index.read_text()
    old = {path.name: path.read_bytes() for path in tmp_path.glob("*.safetensors")}
    run.step()

    def check() -> None:
        now = {path.name: path.read_bytes() for path in tmp_path.glob("*.safetensors")}
        if index.exists() and now != old:
            assert index.read_text() == before  # the same names
            assert not any(now[name] == old[name] and "norm" not in name for name in changing)
        if not index.exists():
            run.accelerator.save_model(run.model, tmp_path, max_shard_size=100)
            for name, content in old.items():
                (tmp_path / name).write_bytes(content)

    changing = [name for name in old if _changes(run, name)]
    assert kill_everywhere(lambda: run.accelerator.save_model(run.model, tmp_path, max_shard_size=100), check) > 20
    run.accelerator.save_model(run.model, tmp_path)
    assert leftovers(tmp_path) == []


def _changes(run: Run, name: str) -> bool:
    shards = modelfiles.split({k: v.nbytes for k, v in run.model.state_dict().items()}, 100, "model", ".safetensors")
    return any("weight" in key for key in shards.files.get(name, []))


def test_a_living_save_is_no_leftover(tmp_path: Path) -> None:
    """What another process is writing beside stays; when that process is gone it is swept."""
    writing = folder.Staging(tmp_path / "other", "abcd")
    run = make_run()
    run.accelerator.save_state(tmp_path / "mine")
    assert writing.path.is_dir()
    writing.abandon()
    assert die_at(
        9, lambda: [folder.Staging(tmp_path / "other", "ef01"), list(tmp_path.rglob("*")), folder.sweep(tmp_path)]
    )
    assert any("ef01" in name for name in leftovers(tmp_path))
    run.accelerator.save_state(tmp_path / "next")
    assert leftovers(tmp_path) == []


def test_a_failed_save_leaves_nothing(tmp_path: Path) -> None:
    """When something cannot be saved the error is raised, the older checkpoint stays, and the folder is as before."""
    run = make_run()
    run.accelerator.save_state(tmp_path / "a")
    names = sorted(path.name for path in (tmp_path / "a").iterdir())

    def fail(*_: object) -> None:
        raise KeyError("a hook's own")

    run.accelerator.register_save_state_pre_hook(fail)
    with pytest.raises(KeyError, match="a hook's own"):
        run.accelerator.save_state(tmp_path / "a")
    with pytest.raises(KeyError, match="a hook's own"):
        run.accelerator.save_state(tmp_path / "b")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == names
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    with pytest.raises(CheckpointError):
        folder.open_checkpoint(tmp_path / "b")
