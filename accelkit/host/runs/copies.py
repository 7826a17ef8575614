"""Code outside git: every file by content in `.accelkit/objects`, a manifest of them, and what is too large for that."""

import hashlib
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from accelkit.contract import codec
from accelkit.host.runs.record import CodeState, FileDigest, StoredFile

STATE: Final = ".accelkit"
MANIFEST_FILE: Final = "code.json"
KNOWN_FILE: Final = "known.json"
"""In the objects folder: what each file was when it was last read, so that one that did not change is not read again."""
MAX_FILE: Final = 50 << 20
"""Bytes; a larger file that no repository tracks is known by its size only."""
MAX_TREE: Final = 500 << 20
"""Bytes of all that is kept of a run; the largest files are left out first."""
MAX_FILES: Final = 20_000
_SHOWN: Final = 3
_FRESH: Final = 2_000_000_000
"""Nanoseconds; a file that was written so shortly before it was read may have changed again within the same tick of its clock."""
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
_BLOCK: Final = 1 << 20


def capture(workdir: Path, run_dir: Path, exclude: tuple[str, ...]) -> CodeState:
    """A copy of `workdir` by content, less caches and `exclude` (relative to it)."""
    objects = run_dir.parent.parent / "objects"
    objects.mkdir(exist_ok=True)
    names: list[str] = []
    unread: list[Path] = []
    complete = True
    for path in walk(workdir, workdir, {os.path.normpath(path) for path in exclude}, unread):
        if len(names) == MAX_FILES:
            complete = False
            break
        names.append(path.relative_to(workdir).as_posix())
    kept, left_out = choose(workdir, names)
    left_out |= {path.relative_to(workdir).as_posix(): FileDigest(sha256="", size=0) for path in unread}
    manifest = _keep(workdir, kept, objects)
    too_many = (
        () if complete else (f"{workdir}: more than {MAX_FILES} files, so this run cannot be reproduced; use git",)
    )
    return CodeState(
        kind="copy",
        root=str(workdir),
        manifest=store(run_dir, MANIFEST_FILE, codec.dumps(manifest).encode()),
        left_out=left_out,
        complete=complete,
        warnings=(*too_many, *warnings(left_out)),
    )


def choose(root: Path, names: Iterable[str]) -> tuple[list[str], dict[str, FileDigest]]:
    """Which of the files `names` below `root` are small enough to be kept, and the size of each of the others."""
    sizes = _sizes(root, names)
    kept: list[str] = []
    left_out = {name: FileDigest(sha256="", size=0) for name in sizes if not _readable(root / name)}
    total = 0
    for number, name in enumerate(sorted(sizes.keys() - left_out, key=lambda n: (sizes[n], n))):
        total += sizes[name]
        if sizes[name] > MAX_FILE or total > MAX_TREE or number >= MAX_FILES:
            left_out[name] = FileDigest(sha256="", size=sizes[name])
        else:
            kept.append(name)
    return sorted(kept), dict(sorted(left_out.items()))


def _sizes(root: Path, names: Iterable[str]) -> dict[str, int]:
    """Bytes of each file; those that are gone meanwhile are left out."""
    sizes = {}
    for name in names:
        with suppress(FileNotFoundError):
            sizes[name] = os.lstat(root / name).st_size
    return sizes


def _readable(path: Path) -> bool:
    return path.is_symlink() or os.access(path, os.R_OK)


def warnings(left_out: Mapping[str, FileDigest]) -> tuple[str, ...]:
    """A sentence for each file that was left out; many are counted."""
    shown = [_left_out(n, d) for n, d in left_out.items()]
    if len(shown) <= _SHOWN:
        return tuple(shown)
    return (
        *shown[: _SHOWN - 1],
        f"and {len(shown) - _SHOWN + 1} more files, {sum(d.size for d in left_out.values()) >> 20} MiB in all",
    )


def _left_out(name: str, digest: FileDigest) -> str:
    if not digest.size:
        return f"{name}: may not be read, so it is not kept with the run's code"
    return f"{name}: {digest.size >> 20} MiB, not kept with the run's code; declare it with --input"


def _keep(workdir: Path, names: Iterable[str], objects: Path) -> dict[str, FileDigest]:
    """Copy each file into `objects` under its digest, and return the digests. Files that did not change are not read."""
    known = _known(objects)
    manifest: dict[str, FileDigest] = {}
    now: dict[str, Any] = {}
    for name in names:
        with suppress(FileNotFoundError):  # gone since it was listed: somebody else works here
            path = workdir / name
            state = _state(path)
            before = known.get(name)
            if before is not None and before[0] == state and (objects / before[1]).exists():
                digest = FileDigest(sha256=before[1], size=state[0], executable=bool(state[4]))
            else:
                digest = _store_object(objects, path)
            if digest.link is None and state[1] < time.time_ns() - _FRESH and state == _state(path):
                now[name] = [state, digest.sha256]
            manifest[name] = digest
    if now != known:
        codec.write_text(objects / KNOWN_FILE, codec.dumps(now))
    return manifest


def _known(objects: Path) -> dict[str, Any]:
    try:
        return codec.loads(dict[str, Any], (objects / KNOWN_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, codec.CodecError):
        return {}


def _state(path: Path) -> list[int]:
    """What changes when a file does: size, times, number, and whether it can be executed."""
    found = os.lstat(path)
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, int(bool(found.st_mode & 0o100))]


def _store_object(objects: Path, path: Path) -> FileDigest:
    """Keep a file's content under its digest, which is that of the copy: somebody may be writing the file."""
    if path.is_symlink():
        return digest_file(path)
    total, size = hashlib.sha256(), 0
    handle, temporary = tempfile.mkstemp(dir=objects)
    try:
        with open(handle, "wb") as copy, path.open("rb") as file:
            executable = bool(os.fstat(file.fileno()).st_mode & 0o100)
            while block := file.read(_BLOCK):
                total.update(block)
                size += copy.write(block)
        os.replace(temporary, objects / total.hexdigest())
    except BaseException:
        os.unlink(temporary)
        raise
    return FileDigest(sha256=total.hexdigest(), size=size, executable=executable)


def walk(top: Path, root: Path, skipped: set[str], unread: list[Path]) -> Iterator[Path]:
    """Files and symbolic links below `top`, sorted; caches and `skipped` (relative to `root`) left out.

    `unread` gets the folders below `top` that may not be read; one that is gone meanwhile had nothing. Raises OSError for `top` itself.
    """
    with os.scandir(top) as entries:
        found = sorted(entries, key=lambda e: e.name)
    for entry in found:
        path = top / entry.name
        if entry.name in _CACHES or (skipped and str(path.relative_to(root)) in skipped):
            continue
        if entry.is_symlink() or entry.is_file():
            yield path
        elif entry.is_dir():
            try:
                yield from walk(path, root, skipped, unread)
            except PermissionError:
                unread.append(path)
            except (FileNotFoundError, NotADirectoryError):
                continue


def digest_file(path: Path, *, follow: bool = False) -> FileDigest:
    """Digest of a file's content, or of a symbolic link's target. `follow`: of the content behind the link."""
    if path.is_symlink() and not follow:
        target = os.readlink(path)
        return FileDigest(sha256=hashlib.sha256(os.fsencode(target)).hexdigest(), size=0, link=target)
    total, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            total.update(block)
            size += len(block)
        executable = bool(os.fstat(file.fileno()).st_mode & 0o100)
    return FileDigest(sha256=total.hexdigest(), size=size, executable=executable)


def store(run_dir: Path, name: str, content: bytes) -> StoredFile:
    """Write a file of the record."""
    (run_dir / name).write_bytes(content)
    return StoredFile(name=name, sha256=hashlib.sha256(content).hexdigest(), size=len(content))
