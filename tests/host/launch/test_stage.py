"""Staging the runtime."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from accelkit.host.launch import stage


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_the_same_runtime_is_staged_once(cache: Path) -> None:
    """The folder's name is the content's digest; a second staging finds it and leaves nothing temporary."""
    first, second = stage.stage_runtime(), stage.stage_runtime()

    assert first == second
    assert [p.name for p in first.folder.parent.iterdir()] == [first.folder.name]


def test_the_digest_follows_the_content(cache: Path) -> None:
    """Another file, or another byte, is another digest."""
    one = stage.tree_digest({"a": b"1"})

    assert one != stage.tree_digest({"a": b"2"})
    assert one != stage.tree_digest({"b": b"1"})
    assert one == stage.tree_digest({"a": b"1"})


def test_a_staged_tree_holds_no_host_code_and_is_read_only(cache: Path) -> None:
    """What runs inside is contract, runtime and their public names; nobody can write it."""
    folder = stage.stage_runtime().folder
    files = [p for p in folder.rglob("*") if p.is_file()]

    assert not any("host" in p.relative_to(folder).parts for p in files)
    assert {oct(p.stat().st_mode & 0o777) for p in files} == {"0o444"}


def test_a_folder_named_accelkit_in_the_working_folder_does_not_shadow_the_runtime(cache: Path, tmp_path: Path) -> None:
    """Boot is started as a file of the staged tree."""
    work = tmp_path / "work"
    (work / "accelkit").mkdir(parents=True)
    (work / "accelkit" / "__init__.py").write_text("raise SystemExit('shadowed')")
    staged = stage.stage_runtime().folder

    done = subprocess.run(
        [sys.executable, staged / stage.BOOT, "--help"],
        cwd=work, env={**os.environ, "PYTHONPATH": str(staged)}, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert "shadowed" not in done.stdout + done.stderr
