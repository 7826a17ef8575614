"""Staging the runtime."""

import os
import subprocess
import sys
from collections.abc import Callable
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
    """What runs inside is contract, runtime and their public names; nobody can write it, and everybody can read it."""
    before = os.umask(0o077)
    try:
        folder = stage.stage_runtime().folder
    finally:
        os.umask(before)
    files = [p for p in folder.rglob("*") if p.is_file()]

    assert {p.name for p in files if p.parent == folder / "accelkit" / "host"} == {"__init__.py"}  # only a sign-post
    assert {oct(p.stat().st_mode & 0o777) for p in files} == {"0o444"}
    assert {oct(p.stat().st_mode & 0o777) for p in (folder, *folder.rglob("*")) if p.is_dir()} == {"0o755"}


def _empty(folder: Path) -> None:
    file = folder / "accelkit" / "runtime" / "boot.py"
    file.chmod(0o644)
    file.write_text("")
    file.chmod(0o444)


def _swap_byte_code(folder: Path) -> None:
    file = next((folder / "accelkit" / "runtime" / "__pycache__").glob("boot.*.pyc"))
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(bytes(reversed(data)))
    file.chmod(0o444)


def _close(folder: Path) -> None:
    (folder / "accelkit" / "runtime").chmod(0o700)


def _lose(folder: Path) -> None:
    (folder / "accelkit" / "contract" / "names.py").unlink()


@pytest.mark.slow
@pytest.mark.parametrize("change", [_empty, _swap_byte_code, _close, _lose])
def test_a_copy_that_was_changed_is_made_anew(cache: Path, change: Callable[[Path], None]) -> None:
    """What runs is what the digest says: sizes, times, permissions, byte code; nothing of the changed copy stays."""
    staged = stage.stage_runtime()
    whole = sorted(p.relative_to(staged.folder) for p in staged.folder.rglob("*"))
    change(staged.folder)
    assert stage.staged_before(staged.folder, staged.digest) is None
    again = stage.stage_runtime()

    assert again == staged
    assert stage.is_whole(staged.folder)
    assert stage.staged_before(staged.folder, staged.digest) == staged
    assert sorted(p.relative_to(staged.folder) for p in staged.folder.rglob("*")) == whole
    assert [p.name for p in staged.folder.parent.iterdir()] == [staged.folder.name]


def test_byte_code_of_another_interpreter_is_no_change(cache: Path) -> None:
    """Python leaves its own beside ours."""
    folder = stage.stage_runtime().folder
    (folder / "accelkit" / "__pycache__" / "__init__.cpython-399.pyc").write_bytes(b"x")
    stage.stage_runtime()

    assert (folder / "accelkit" / "__pycache__" / "__init__.cpython-399.pyc").exists()


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
