"""Capturing code and laying it out again, with real repositories."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from accelkit.host.errors import UsageError
from accelkit.host.runs import capture, copies, replay
from accelkit.host.runs.record import CodeState
from accelkit.host.runs.store import Store
from tests.support.kit import ROOT, until


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
    replay._worktree(code, run_dir, Path(code.root), target)

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
    text = (tmp_path / "s" / "runs" / "r" / copies.MANIFEST_FILE).read_text()
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

    since = (tmp_path / "outputs" / "new").stat().st_mtime
    found, unread = capture.digest_outputs(tmp_path, ["outputs", "missing"], since)
    assert (list(found), unread) == (["outputs/new"], [])


def lay_out(code: CodeState, folder: Path, target: Path) -> None:
    """The captured code, laid out again."""
    if code.kind == "git":
        replay._worktree(code, folder / "runs" / "r", Path(code.root), target)
    else:
        replay._copy(code, Store(folder / "work"), folder / "work" / ".accelkit" / "runs" / "r", target)


def test_the_repository_gains_no_object(repository: Path, tmp_path: Path) -> None:
    """What a diff needs is made elsewhere: not one file of .git is new after a capture."""
    before = sorted((repository / ".git").rglob("*"))
    capture_in(repository / "sub", tmp_path / "s" / "runs" / "r")
    assert sorted((repository / ".git").rglob("*")) == before


def test_a_hooks_variables_mean_nothing(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started from a hook of another repository, whose GIT_DIR and index are set, the folder's own repository is captured."""
    other = tmp_path / "other"
    git(tmp_path, "init", "-q", str(other))
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    assert capture_in(repository / "sub", tmp_path / "s" / "runs" / "r").root == str(repository)


def test_what_is_too_large_is_named_and_linked(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new file that is too large is no part of the diff; a warning names it, and a run again finds it at its place."""
    monkeypatch.setattr(copies, "MAX_FILE", 1000)
    (repository / "sub" / "weights.bin").write_bytes(bytes(1001))
    run_dir = tmp_path / "s" / "runs" / "r"
    code = capture_in(repository / "sub", run_dir)

    assert list(code.left_out) == ["sub/weights.bin"]
    assert "weights.bin" in code.warnings[0]
    assert "sub/new.bin" in {c.path for c in code.changed}


def test_the_smallest_files_are_kept_when_all_are_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the limit of all together the largest are left out, so that scripts are kept and data is not."""
    monkeypatch.setattr(copies, "MAX_TREE", 100)
    for name, size in {"data0": 60, "train.py": 30, "data1": 80, "x.py": 10}.items():
        (tmp_path / name).write_bytes(bytes(size))
    kept, left_out = copies.choose(tmp_path, ["data0", "train.py", "data1", "x.py", "gone"])
    assert (kept, list(left_out)) == (["data0", "train.py", "x.py"], ["data1"])


def test_an_executable_comes_back_as_one_outside_git_too(tmp_path: Path) -> None:
    """Mode, content, symbolic links and names that are no text; a second capture, from what is known, gives the same."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "tool.sh").write_text("#!/bin/sh\n")
    (work / "tool.sh").chmod(0o755)
    (work / os.fsdecode(b"n\xff")).write_text("1")
    (work / "link").symlink_to("tool.sh")
    os.utime(work / "tool.sh", (1, 1))
    first = capture_in(work, work / ".accelkit" / "runs" / "r")
    second = capture_in(work, work / ".accelkit" / "runs" / "r")
    assert first == second
    lay_out(second, tmp_path, tmp_path / "again")

    assert os.access(tmp_path / "again" / "tool.sh", os.X_OK)
    assert (tmp_path / "again" / os.fsdecode(b"n\xff")).read_text() == "1"
    assert os.readlink(tmp_path / "again" / "link") == "tool.sh"


def test_a_change_is_never_taken_for_known(tmp_path: Path) -> None:
    """A file of the same size that is written again at once has its new content in the next capture."""
    work = tmp_path / "work"
    work.mkdir()
    for text in ("1", "2", "3"):
        (work / "a.py").write_text(text)
        capture_in(work, work / ".accelkit" / "runs" / "r")
        (tmp_path / f"again{text}").mkdir()
        lay_out(capture_in(work, work / ".accelkit" / "runs" / "r"), tmp_path, tmp_path / f"again{text}" / "t")
        assert (tmp_path / f"again{text}" / "t" / "a.py").read_text() == text


def test_submodules_come_back_at_their_commits(tmp_path: Path) -> None:
    """Also nested in a folder; one with changes of its own is warned about."""
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    for folder in (inner, outer):
        git(tmp_path, "init", "-q", str(folder))
        (folder / "a.py").write_text("1")
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", "one")
    git(outer, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner), "libs/inner (x)")
    git(outer, "commit", "-qm", "two")
    (outer / "libs" / "inner (x)" / "a.py").write_text("2")
    run_dir = tmp_path / "s" / "runs" / "r"
    code = capture_in(outer, run_dir)
    replay._worktree(code, run_dir, outer, tmp_path / "again")

    assert [s.path for s in code.submodules] == ["libs/inner (x)"]
    assert any("libs/inner (x)" in warning for warning in code.warnings)
    assert (tmp_path / "again" / "libs" / "inner (x)" / "a.py").read_text() == "1"


def test_a_repository_inside_is_named_not_recorded(repository: Path, tmp_path: Path) -> None:
    """A clone that lies in the tree without being a submodule."""
    nested = repository / "sub" / "clone"
    git(tmp_path, "init", "-q", str(nested))
    (nested / "a").write_text("1")
    git(nested, "add", "-A")
    git(nested, "commit", "-qm", "one")
    code = capture_in(repository / "sub", tmp_path / "s" / "runs" / "r")
    assert any("sub/clone" in warning for warning in code.warnings)
    assert not any("clone" in change.path for change in code.changed)


def test_a_users_settings_for_diffs_change_nothing(repository: Path, tmp_path: Path) -> None:
    """Colours, no context, a log of submodules: the recorded change applies again all the same."""
    for name, value in {
        "color.ui": "always",
        "diff.context": "0",
        "diff.submodule": "log",
        "diff.noprefix": "true",
    }.items():
        git(repository, "config", name, value)
    run_dir = tmp_path / "s" / "runs" / "r"
    code = capture_in(repository / "sub", run_dir)
    replay._worktree(code, run_dir, repository, tmp_path / "again")
    assert (tmp_path / "again" / "sub" / "edit.txt").read_text() == "2\n"


def test_a_file_may_become_a_folder_and_a_folder_a_file(repository: Path, tmp_path: Path) -> None:
    """Between commit and run."""
    top = repository / "sub"
    (top / "same.txt").unlink()
    (top / "same.txt").mkdir()
    (top / "same.txt" / "inner").write_text("3")
    (top / 'a"b').write_text("4")
    run_dir = tmp_path / "s" / "runs" / "r"
    code = capture_in(top, run_dir)
    replay._worktree(code, run_dir, repository, tmp_path / "again")
    assert (tmp_path / "again" / "sub" / "same.txt" / "inner").read_text() == "3"

    (top / 'a"b').write_text("5")
    later = capture_in(top, tmp_path / "s" / "runs" / "r2")
    assert {c for c in later.changed if c not in code.changed} == {c for c in later.changed if c.path == 'sub/a"b'}


def test_outputs_are_a_part_of_the_folder(repository: Path, tmp_path: Path) -> None:
    """All of it is refused; what lies elsewhere is no matter of the code."""
    (tmp_path / "s").mkdir()
    with pytest.raises(UsageError, match="whole working folder"):
        capture.capture_code(repository / "sub", tmp_path / "s", exclude=["."])
    assert capture.capture_code(repository / "sub", tmp_path / "s", exclude=["/elsewhere", "../x"]).kind == "git"


def test_the_content_behind_a_linked_input_counts(tmp_path: Path) -> None:
    """Its digest is another when the file behind the link is."""
    (tmp_path / "data").write_text("1")
    (tmp_path / "link").symlink_to("data")
    before = capture.digest_inputs(tmp_path, ["link"])
    (tmp_path / "data").write_text("2")
    assert capture.digest_inputs(tmp_path, ["link"]) != before


def test_a_folder_that_somebody_else_works_in_is_captured(tmp_path: Path) -> None:
    """Files that come, go and grow meanwhile: what is kept is kept under the digest of what is kept."""
    work, run_dir = tmp_path / "work", tmp_path / "state" / "runs" / "r"
    work.mkdir()
    churn = (
        "import os, itertools\nlog = open('z.log', 'ab', buffering=0)\n"
        "for n in itertools.count():\n"
        "    names = [f'{n % 7}-{i}.tmp' for i in range(40)]\n"
        "    for name in names: open(name, 'w').write(str(n))\n"
        "    log.write(b'x' * 100000)\n"
        "    if n % 50 == 0: log.truncate(0)\n"
        "    for name in names: os.remove(name)\n"
    )
    other = subprocess.Popen([sys.executable, "-c", churn], cwd=work)
    try:
        until((work / "z.log").exists, "the other works")
        for _ in range(30):
            capture_in(work, run_dir)
    finally:
        other.kill()
        other.wait()

    objects = [p for p in (tmp_path / "state" / "objects").iterdir() if p.name != copies.KNOWN_FILE]
    assert objects
    assert [p.name for p in objects] == [copies.digest_file(p).sha256 for p in objects]


def test_a_folder_that_may_not_be_read_costs_only_itself(tmp_path: Path) -> None:
    """As code it is left out with a warning, as output too, with the rest recorded; as input it is refused."""
    work = tmp_path / "work"
    for name in ("a", "private", "z"):
        (work / name).mkdir(parents=True)
        (work / name / "f").write_text(name)
    program = (
        "import os, sys, pathlib\nfrom accelkit.host.runs import capture\nfrom accelkit.host.errors import UsageError\n"
        "if os.getuid() == 0: os.setgid(12345); os.setuid(12345)\n"
        "work, run = map(pathlib.Path, sys.argv[1:])\n"
        "code = capture.capture_code(work, run, exclude=[])\n"
        "assert list(code.left_out) == ['private'], code.left_out\n"
        "assert 'private: may not be read' in code.warnings[0], code.warnings\n"
        "assert '\"z/f\"' in (run / 'code.json').read_text()\n"
        "found, unread = capture.digest_outputs(work, ['.'])\n"
        "assert set(found) == {'a/f', 'z/f'}, found\n"
        "assert len(unread) == 1 and 'private' in unread[0], unread\n"
        "try: capture.digest_inputs(work, ['.'])\n"
        "except UsageError as error: assert 'private' in error.message\n"
        "else: raise SystemExit('taken as input')\n"
    )
    run_dir = tmp_path / "state" / "runs" / "r"
    run_dir.mkdir(parents=True)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o755)
    for folder in (tmp_path / "state", run_dir.parent, run_dir):
        folder.chmod(0o777)
    (work / "private").chmod(0)
    done = subprocess.run(
        [sys.executable, "-c", program, str(work), str(run_dir)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    (work / "private").chmod(0o755)

    assert done.returncode == 0, done.stderr
