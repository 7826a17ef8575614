"""Capturing what a run starts from and leaves: the code with every change, digests of inputs and outputs.

The user's tree, index, branch and objects are never touched: changes are read through a temporary index with objects of its own.
"""

import dataclasses
import errno
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from accelkit.host.errors import UsageError
from accelkit.host.runs import copies, git
from accelkit.host.runs.copies import STATE, digest_file
from accelkit.host.runs.record import Change, CodeState, FileDigest, Submodule

DIFF_FILE: Final = "code.diff"
_READABLE: Final = "an input is a file, or a folder of files, that you may read"
_PATCH: Final = (
    *("-p", "-U3", "--binary", "--full-index", "--no-renames", "--no-color", "--no-ext-diff", "--no-textconv"),
    *("--submodule=short", "--src-prefix=a/", "--dst-prefix=b/"),
)
"""Whatever the user likes diffs to look like, ours must apply again."""


def capture_code(workdir: Path, run_dir: Path, exclude: Iterable[str]) -> CodeState:
    """The code in `workdir`: commit and diff in git, a copy by content elsewhere.

    `exclude`: the run's outputs, relative to `workdir`; with `.accelkit` they never count as code.
    Raises UsageError when an output is the whole of `workdir`.
    """
    outputs = _below(workdir, exclude)
    top, why = git.ask_why(workdir, "rev-parse", "--show-toplevel", "--verify", "HEAD")
    if top is None:
        code = copies.capture(workdir, run_dir, outputs)
        distrusted = "dubious ownership" in why
        return dataclasses.replace(code, warnings=(*code.warnings, _distrusted(why))) if distrusted else code
    root, commit = top.rstrip("\n").rsplit("\n", 1)
    return _from_git(Path(root), commit, workdir, run_dir, outputs)


def _below(workdir: Path, paths: Iterable[str]) -> tuple[str, ...]:
    """Those of `paths` that lie in `workdir`, relative to it."""
    found = [os.path.relpath(workdir / path, workdir) for path in paths]
    if "." in found:
        raise UsageError("--output .: the whole working folder; name a folder in it that holds nothing else")
    return tuple(path for path in found if not path.startswith(".."))


def _distrusted(why: str) -> str:
    line = next(line for line in why.splitlines() if "dubious ownership" in line)
    return f"code is recorded as outside git: git says {line.removeprefix('fatal: ')}"


def _from_git(root: Path, commit: str, workdir: Path, run_dir: Path, exclude: tuple[str, ...]) -> CodeState:
    subdir = os.path.relpath(workdir.resolve(), root.resolve())
    prefix = "" if subdir == "." else f"{subdir}/"
    own = tuple(f"{prefix}{os.path.normpath(path)}" for path in (STATE, *exclude))
    outside = [f":(exclude,top,literal){path}" for path in own]
    with tempfile.TemporaryDirectory(prefix="accelkit-index-") as folder:
        index = _index_of_its_own(root, Path(folder))
        listed = git.must(root, "ls-files", "-z", "-t", "-m", "-d", "-o", "--exclude-standard", "--", ":/", env=index)
        changed, new = _listed(listed, own)
        nested = [path for path in new if path.endswith("/")]
        fits, left_out = copies.choose(root, [path for path in new if not path.endswith("/")])
        stdin = "".join(f"{path}\0" for path in dict.fromkeys((*changed, *fits)))
        git.must(root, "update-index", "--add", "--remove", "--replace", "-z", "--stdin", env=index, text=stdin)
        places = (commit, "--", ":/", *outside)
        listed = git.must(
            root, "diff-index", "--cached", "--raw", "-z", "--no-renames", "--abbrev=64", *places, env=index
        )
        diff = git.must(root, "diff-index", "--cached", *_PATCH, *places, env=index) if listed else ""
    branch = git.ask(root, "symbolic-ref", "--quiet", "--short", "HEAD")
    submodules, warnings = _submodules(root)
    return CodeState(
        kind="git",
        root=str(root),
        subdir="" if subdir == "." else subdir,
        commit=commit,
        branch=branch.strip() if branch else None,
        dirty=bool(diff or left_out),
        diff=copies.store(run_dir, DIFF_FILE, diff.encode("utf-8", "surrogateescape")) if diff else None,
        changed=_changes(listed),
        submodules=submodules,
        left_out=left_out,
        warnings=(
            *copies.warnings(left_out),
            *warnings,
            *(f"{n}: a repository of its own, not recorded" for n in nested),
        ),
    )


def _index_of_its_own(root: Path, folder: Path) -> dict[str, str]:
    """Variables that make git write index and objects into `folder`, and read the repository's beside them."""
    real = Path(git.must(root, "rev-parse", "--absolute-git-dir").strip())
    objects = folder / "objects"
    objects.mkdir()
    if (real / "index").is_file():
        # With its time: git takes an entry for unchanged when the file is older than the index.
        shutil.copy2(real / "index", folder / "index")
    theirs = root / git.must(root, "rev-parse", "--git-path", "objects").rstrip("\n")
    return {
        "GIT_INDEX_FILE": str(folder / "index"),
        "GIT_OBJECT_DIRECTORY": str(objects),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": f'"{theirs}"',
    }


def _listed(text: str, own: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Paths of `git ls-files -t`: those that git tracks and that changed, and new ones; without `own` and what is below."""
    changed: list[str] = []
    new: list[str] = []
    for entry in filter(None, text.split("\0")):
        tag, path = entry[0], entry[2:]
        if not any(path == o or path.startswith(f"{o}/") for o in own):
            (new if tag == "?" else changed).append(path)
    return changed, new


def _changes(text: str) -> tuple[Change, ...]:
    """From `git diff-index --raw -z`: a colon, modes, object names and the status, then the path."""
    parts = text.split("\0")
    found = []
    for about, path in zip(parts[0::2], parts[1::2], strict=False):
        _, mode, _, content, status = about.split()
        found.append(Change(status=status[:1], path=path, content=f"{mode} {content}"))
    return tuple(found)


def _submodules(root: Path) -> tuple[tuple[Submodule, ...], tuple[str, ...]]:
    """Submodules that are checked out, nested ones too, and a warning for each with changes of its own."""
    if not (root / ".gitmodules").is_file():
        return (), ()
    listed = (git.ask(root, "submodule", "status", "--recursive") or "").splitlines()
    found = [
        Submodule(path=line[42:].rpartition(" (")[0] or line[42:], commit=line[1:41])
        for line in listed
        if line[:1] in " +"
    ]
    changed = [s.path for s in found if git.ask(root / s.path, "status", "--porcelain", "--ignore-submodules=all")]
    return tuple(found), tuple(
        f"{path}: a submodule with changes, which are not recorded; commit them" for path in changed
    )


def digest_inputs(workdir: Path, paths: Sequence[str]) -> dict[str, FileDigest]:
    """Digests of every file in `paths` (files, or folders that are walked), by path relative to `workdir`; of a link the content behind it.

    Raises UsageError for a path that is not there, or cannot be read.
    """
    found: dict[str, FileDigest] = {}
    for text in paths:
        path = workdir / text
        if not path.exists():
            raise UsageError(f"--input {text}: not in {workdir}")
        try:
            unread: list[Path] = []
            for file in _files(path, unread):
                found[os.path.relpath(file, workdir)] = digest_file(file, follow=True)
            if unread:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(unread[0]))
        except OSError as error:
            raise UsageError(f"--input {text}: {error.filename}: {error.strerror}", hint=_READABLE) from error
    return found


def digest_outputs(workdir: Path, paths: Sequence[str], since: float = 0.0) -> tuple[dict[str, FileDigest], list[str]]:
    """Digests of the files in `paths` that were written at or after `since`, and a sentence for each that cannot be read.

    Missing paths are none. `since`: the modification time of a file that was written just before the run, so that one clock is compared
    with itself.
    """
    found: dict[str, FileDigest] = {}
    unread: list[str] = []
    for text in paths:
        folders: list[Path] = []
        try:
            for file in _files(workdir / text, folders) if (workdir / text).exists() else ():
                _digest_output(file, workdir, since, found, unread)
        except OSError as error:
            unread.append(_not_among(error))
        unread += [
            f"{folder}: may not be read, so what is in it is not among the recorded outputs" for folder in folders
        ]
    return found, unread


def _digest_output(file: Path, workdir: Path, since: float, found: dict[str, FileDigest], unread: list[str]) -> None:
    try:
        if file.lstat().st_mtime >= since:
            found[os.path.relpath(file, workdir)] = digest_file(file)
    except OSError as error:
        unread.append(_not_among(error))


def _not_among(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}, so it is not among the recorded outputs"


def _files(path: Path, unread: list[Path]) -> Iterable[Path]:
    return [path] if path.is_file() else copies.walk(path, path, set(), unread)
