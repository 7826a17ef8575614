"""Capturing what a run starts from and leaves: the code with every change, digests of inputs and outputs.

The user's tree, index and branch are never touched: changes are read through a temporary index.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from accelkit.contract import codec
from accelkit.host import process
from accelkit.host.errors import KitError, UsageError
from accelkit.host.runs.record import Change, CodeState, FileDigest, StoredFile, Submodule

STATE: Final = ".accelkit"
DIFF_FILE: Final = "code.diff"
MANIFEST_FILE: Final = "code.json"
MAX_FILE: Final = 50 << 20
"""Bytes; a larger file outside git is known by its digest only."""
MAX_TREE: Final = 500 << 20
_CACHES: Final = {
    "__pycache__",
    ".git",
    ".venv",
    "venv",
    "node_modules",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    STATE,
}
_PLAIN: Final = ("-c", "diff.noprefix=false", "-c", "diff.mnemonicPrefix=false")
"""Whatever the user likes diffs to look like, ours must apply again."""
_BLOCK: Final = 1 << 20


def capture_code(workdir: Path, run_dir: Path, exclude: Iterable[str]) -> CodeState:
    """The code in `workdir`: commit and diff in git, a copy by content elsewhere.

    `exclude`: the run's outputs, relative to `workdir`; with `.accelkit` they never count as code.
    """
    top = _git(workdir, "rev-parse", "--show-toplevel", "--verify", "HEAD")
    if top is None:
        return _copy(workdir, run_dir, tuple(exclude))
    root, commit = top.splitlines()
    return _from_git(Path(root), commit, workdir, run_dir, tuple(exclude))


def _from_git(root: Path, commit: str, workdir: Path, run_dir: Path, exclude: tuple[str, ...]) -> CodeState:
    subdir = os.path.relpath(workdir.resolve(), root.resolve())
    prefix = "" if subdir == "." else f"{subdir}/"
    outside = [f":(exclude){prefix}{os.path.normpath(path)}" for path in (STATE, *exclude)]
    with tempfile.TemporaryDirectory(prefix="accelkit-index-") as folder:
        index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        real = Path(_must(root, "rev-parse", "--absolute-git-dir").strip()) / "index"
        if real.is_file():
            # With its time: git takes an entry for unchanged when the file is older than the index.
            shutil.copy2(real, index["GIT_INDEX_FILE"])
        listed = _must(root, "ls-files", "-z", "-m", "-d", "-o", "--exclude-standard", "--", ":/", env=index)
        own = tuple(f"{prefix}{os.path.normpath(path)}" for path in (STATE, *exclude))
        changed = [p for p in listed.split("\0") if p and not any(p == o or p.startswith(f"{o}/") for o in own)]
        stdin = "".join(f"{path}\0" for path in dict.fromkeys(changed))
        _must(root, "update-index", "--add", "--remove", "-z", "--stdin", env=index, text=stdin)
        base = ("diff", "--cached", "--no-ext-diff", "--no-textconv", "--no-renames")
        diff = _must(root, *base, "--binary", "--full-index", commit, "--", ":/", *outside, env=index)
        names = _must(root, *base, "--name-status", "-z", commit, "--", ":/", *outside, env=index) if diff else ""
    branch = _git(root, "symbolic-ref", "--quiet", "--short", "HEAD")
    return CodeState(
        kind="git",
        root=str(root),
        subdir="" if subdir == "." else subdir,
        commit=commit,
        branch=branch.strip() if branch else None,
        dirty=bool(diff),
        diff=_store(run_dir, DIFF_FILE, diff.encode("utf-8", "surrogateescape")) if diff else None,
        changed=_changes(names),
        submodules=_submodules(root),
    )


def _changes(text: str) -> tuple[Change, ...]:
    parts = text.split("\0")
    return tuple(Change(status=parts[i][:1], path=parts[i + 1]) for i in range(0, len(parts) - 1, 2))


def _submodules(root: Path) -> tuple[Submodule, ...]:
    if not (root / ".gitmodules").is_file():
        return ()
    lines = (_git(root, "submodule", "status") or "").splitlines()
    return tuple(Submodule(path=line[1:].split()[1], commit=line[1:].split()[0]) for line in lines if line.strip())


def _copy(workdir: Path, run_dir: Path, exclude: tuple[str, ...]) -> CodeState:
    """Every file by content into the objects folder, and a manifest of them."""
    objects = run_dir.parent.parent / "objects"
    objects.mkdir(exist_ok=True)
    skipped = {os.path.normpath(path) for path in exclude}
    manifest: dict[str, FileDigest] = {}
    left_out: dict[str, FileDigest] = {}
    total = 0
    for path in _walk(workdir, workdir, skipped):
        digest = digest_file(path)
        total += digest.size
        name = path.relative_to(workdir).as_posix()
        if digest.size > MAX_FILE or total > MAX_TREE:
            left_out[name] = digest
            continue
        manifest[name] = digest
        _keep(objects, path, digest)
    text = codec.dumps(manifest)
    return CodeState(
        kind="copy",
        root=str(workdir),
        manifest=_store(run_dir, MANIFEST_FILE, text.encode()),
        left_out=left_out,
        complete=total <= MAX_TREE,
        warnings=tuple(f"{n}: {d.size >> 20} MiB, not kept; declare it with --input" for n, d in left_out.items()),
    )


def _keep(objects: Path, path: Path, digest: FileDigest) -> None:
    target = objects / digest.sha256
    if digest.link is not None or target.exists():
        return
    handle, temporary = tempfile.mkstemp(dir=objects)
    os.close(handle)
    shutil.copyfile(path, temporary)
    os.replace(temporary, target)


def _walk(top: Path, root: Path, skipped: set[str]) -> Iterator[Path]:
    """Files and symbolic links below `top`, sorted; caches and `skipped` (relative to `root`) left out."""
    for entry in sorted(top.iterdir()):
        if entry.name in _CACHES or str(entry.relative_to(root)) in skipped:
            continue
        if entry.is_symlink() or entry.is_file():
            yield entry
        elif entry.is_dir():
            yield from _walk(entry, root, skipped)


def digest_file(path: Path) -> FileDigest:
    """Digest of a file's content, or of a symbolic link's target."""
    if path.is_symlink():
        target = os.readlink(path)
        return FileDigest(sha256=hashlib.sha256(target.encode()).hexdigest(), size=0, link=target)
    total, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            total.update(block)
            size += len(block)
    return FileDigest(sha256=total.hexdigest(), size=size)


def digest_paths(workdir: Path, paths: Sequence[str]) -> dict[str, FileDigest]:
    """Digests of every file in `paths` (files, or folders that are walked), by path relative to `workdir`.

    Raises UsageError for a path that is not there.
    """
    found: dict[str, FileDigest] = {}
    for text in paths:
        path = workdir / text
        if not path.exists():
            raise UsageError(f"--input {text}: not in {workdir}")
        files = [path] if path.is_file() else _walk(path, path, set())
        found |= {os.path.relpath(file, workdir): digest_file(file) for file in files}
    return found


def written_since(workdir: Path, paths: Sequence[str], since: float) -> dict[str, FileDigest]:
    """Digests of the files in `paths` that were written at or after `since`; missing paths are none.

    `since`: the modification time of a file that was written just before the run, so that one clock is compared with itself.
    """
    there = [text for text in paths if (workdir / text).exists()]
    return {n: d for n, d in digest_paths(workdir, there).items() if (workdir / n).lstat().st_mtime >= since}


def _store(run_dir: Path, name: str, content: bytes) -> StoredFile:
    (run_dir / name).write_bytes(content)
    return StoredFile(name=name, sha256=hashlib.sha256(content).hexdigest(), size=len(content))


def _git(folder: Path, *words: str, env: dict[str, str] | None = None) -> str | None:
    """Output of a git command in `folder`; None when it fails or there is no git."""
    try:
        done = process.run(["git", "-C", str(folder), "-c", "core.quotePath=false", *words], env=env)
    except KitError:
        return None
    return done.stdout if done.code == 0 else None


def _must(folder: Path, *words: str, env: dict[str, str] | None = None, text: str | None = None) -> str:
    command = ["git", "-C", str(folder), "-c", "core.quotePath=false", "-c", "core.autocrlf=false", *_PLAIN, *words]
    return process.run(command, env=env, text=text, check=True).stdout
