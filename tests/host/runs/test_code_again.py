"""Capturing code and laying it out again, with real repositories."""

import subprocess
from pathlib import Path

import pytest

from accelkit.host.runs import capture, replay
from accelkit.host.runs.record import CodeState


def git(folder: Path, *words: str) -> str:
    """A git command with an identity."""
    argv = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a commit and every kind of change since."""
    top = tmp_path / "repo"
    (top / "sub").mkdir(parents=True)
    git(tmp_path, "init", "-q", str(top))
    for name, text in {
        "same.txt": "1",
        "edit.txt": "1\n",
        "gone.txt": "1",
        "crlf.txt": "a\r\nb\r\n",
        ".gitignore": "*.log\n",
    }.items():
        (top / "sub" / name).write_bytes(text.encode())
    git(top, "add", "-A")
    git(top, "commit", "-qm", "one")
    (top / "sub" / "edit.txt").write_text("2\n")
    (top / "sub" / "gone.txt").unlink()
    (top / "sub" / "crlf.txt").write_bytes(b"a\r\nc\r\n")
    (top / "sub" / "new.bin").write_bytes(bytes(range(256)))
    (top / "sub" / "x.log").write_text("ignored")
    (top / "sub" / "outputs").mkdir()
    (top / "sub" / "outputs" / "model").write_text("big")
    (top / "sub" / ".accelkit").mkdir()
    (top / "sub" / ".accelkit" / "record").write_text("r")
    return top


def capture_in(folder: Path, run_dir: Path) -> CodeState:
    """Capture into a run's folder."""
    run_dir.mkdir(parents=True, exist_ok=True)
    return capture.capture_code(folder, run_dir, exclude=["outputs"])


def test_every_change_is_recorded_and_nothing_is_touched(repository: Path, tmp_path: Path) -> None:
    """Edited (also within the second of the commit), deleted and new files; outputs, ignored files and .accelkit never."""
    before = git(repository, "status", "--porcelain")
    code = capture_in(repository / "sub", tmp_path / "s" / "runs" / "r")

    assert {(c.status, c.path) for c in code.changed} == {
        ("M", "sub/edit.txt"), ("D", "sub/gone.txt"), ("M", "sub/crlf.txt"), ("A", "sub/new.bin"),
    }  # fmt: skip
    assert (code.kind, code.subdir, code.dirty) == ("git", "sub", True)
    assert git(repository, "status", "--porcelain") == before


def test_the_recorded_tree_comes_back_byte_for_byte(repository: Path, tmp_path: Path) -> None:
    """Also after the user's tree has moved on; the worktree is gone afterwards."""
    run_dir = tmp_path / "s" / "runs" / "r"
    code = capture_in(repository / "sub", run_dir)
    (repository / "sub" / "edit.txt").write_text("3\n")
    git(repository, "commit", "-qam", "two")
    target = tmp_path / "again"
    replay._worktree(code, run_dir, target)

    assert (target / "sub" / "edit.txt").read_text() == "2\n"
    assert (target / "sub" / "crlf.txt").read_bytes() == b"a\r\nc\r\n"
    assert (target / "sub" / "new.bin").read_bytes() == bytes(range(256))
    assert not (target / "sub" / "gone.txt").exists()
    assert (repository / "sub" / "edit.txt").read_text() == "3\n"


def test_outside_git_files_are_kept_by_content(tmp_path: Path) -> None:
    """A copy with a manifest; outputs and caches are left out."""
    work = tmp_path / "work"
    (work / "pkg" / "__pycache__").mkdir(parents=True)
    (work / "pkg" / "a.py").write_text("1")
    (work / "pkg" / "__pycache__" / "a.pyc").write_text("x")
    (work / "outputs").mkdir()
    (work / "outputs" / "o").write_text("x")
    (work / "link").symlink_to("pkg/a.py")
    code = capture_in(work, tmp_path / "s" / "runs" / "r")

    assert code.kind == "copy"
    text = (tmp_path / "s" / "runs" / "r" / capture.MANIFEST_FILE).read_text()
    assert "pkg/a.py" in text
    assert "link" in text
    assert "pyc" not in text
    assert "outputs" not in text


def test_only_what_a_run_wrote_counts_as_its_output(tmp_path: Path) -> None:
    """Older files of the same folder are somebody else's."""
    import os

    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "old").write_text("1")
    os.utime(tmp_path / "outputs" / "old", (1, 1))
    (tmp_path / "outputs" / "new").write_text("2")

    assert list(
        capture.written_since(tmp_path, ["outputs", "missing"], (tmp_path / "outputs" / "new").stat().st_mtime)
    ) == ["outputs/new"]
