"""Staging: a content-addressed, read-only copy of what runs inside (`contract` + `runtime`), so that a run cannot change under way.

The copy lies in the user's cache, a folder a digest, and is what containers mount and local ranks import. The digest is over the
sorted list of (relative path, SHA-256 of the content) and is part of the run's record.
"""

import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from accelkit.contract.data import data
from accelkit.host import paths
from accelkit.host.errors import KitError

PARTS: Final = ("__init__.py", "__main__.py", "contract", "hooks", "runtime", "utils")
"""What is staged of the package, relative to it."""

BOOT: Final = "kit_boot.py"
"""The file at the top of a staged tree that nodes start. Run as a file, so that a folder named accelkit in the working folder cannot
stand in its way (as it could with `python -m`)."""

SEAL: Final = "kit_seal"
"""The file at the top of a staged tree that lists the others with their sizes and times, by which a change is seen without reading them."""

_BOOT_TEXT: Final = "from accelkit.runtime.boot import main\n\nmain()\n"

_ELSEWHERE: Final = ("host", "testing")
"""Parts of the package that are not staged. Where this interpreter has accelkit installed, a rank still finds them there."""

_ELSEWHERE_TEXT: Final = '''"""Not staged: what the accelkit that is installed beside this copy has of it, if there is one."""

import os
import sys

_PARENT, _NAME = os.path.split(os.path.dirname(os.path.abspath(__file__)))
_PLACES = (os.path.join(os.path.abspath(place), "accelkit") for place in sys.path)
__path__ = [os.path.join(place, _NAME) for place in _PLACES if place != _PARENT and os.path.isdir(os.path.join(place, _NAME))]
'''


@data
class Staged:
    """A staged tree: put `folder` on PYTHONPATH."""

    folder: Path
    digest: str


def stage_runtime(extra: tuple[str, ...] = ()) -> Staged:
    """Copy the runtime of this installation into the cache, or find the copy that is there.

    `extra`: more files of the package, relative to it (the pytest plug-in's inner half). Raises KitError when the cache cannot be written.
    """
    files = {f"accelkit/{name}": text for name, text in _package_files(extra)}
    files[BOOT] = _BOOT_TEXT.encode()
    for part in _ELSEWHERE:
        files.setdefault(f"accelkit/{part}/__init__.py", _ELSEWHERE_TEXT.encode())
    digest = tree_digest(files)
    folder = paths.cache_home() / "runtime" / digest.removeprefix("sha256:")[:24]
    if not is_whole(folder):
        _write_tree(folder, files)
    return Staged(folder=folder, digest=digest)


def staged_before(folder: Path, digest: str) -> Staged | None:
    """An earlier copy with this digest, checked file by file; None when it is gone or changed."""
    if not is_whole(folder):
        return None
    files = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*.py")}
    return Staged(folder=folder, digest=digest) if tree_digest(files) == digest else None


def tree_digest(files: dict[str, bytes]) -> str:
    """`sha256:...` over the sorted paths and contents of `files`."""
    total = hashlib.sha256()
    for name in sorted(files):
        total.update(f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n".encode())
    return f"sha256:{total.hexdigest()}"


def _package_files(extra: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    root = paths.package_root()
    for part in (*PARTS, *extra):
        top = root / part
        found = sorted(top.rglob("*.py")) if top.is_dir() else [top]
        for path in found:
            if path.is_file():
                yield path.relative_to(root).as_posix(), path.read_bytes()


def is_whole(folder: Path) -> bool:
    """Whether a staged tree is there and none of its files was changed, as their sizes, times and permissions tell."""
    try:
        seal = (folder / SEAL).read_text(encoding="utf-8")
        return seal == _sealed(folder, [line[: line.index("\t")] for line in seal.splitlines()])
    except (OSError, ValueError):
        return False


def _sealed(folder: Path, listed: Iterable[str]) -> str:
    """A line for each of these files and folders."""
    lines, top = [], f"{folder}/"
    for name in listed:
        found = os.stat(top + name)
        of_file = "" if stat.S_ISDIR(found.st_mode) else f"\t{found.st_size}\t{found.st_mtime_ns}"
        lines.append(f"{name}\t{found.st_mode}{of_file}")
    return "\n".join(lines)


def _write_tree(folder: Path, files: dict[str, bytes]) -> None:
    """Write to a temporary folder beside `folder` and rename it; whoever comes second keeps the first one's copy, if that is whole."""
    import tempfile

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".stage-", dir=folder.parent))
    except OSError as error:
        raise KitError(
            f"cannot stage the runtime in {folder.parent}: {error.strerror}",
            hint="set XDG_CACHE_HOME to a folder of yours",
        ) from error
    try:
        for name, content in files.items():
            path = temporary / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        _compile(temporary)
        _seal(temporary)
        if folder.exists() and not is_whole(folder):
            os.rename(folder, temporary / "changed")
        os.rename(temporary, folder)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if not is_whole(folder):
            raise KitError(f"cannot stage the runtime in {folder}: {error.strerror}") from error
    shutil.rmtree(folder / "changed", ignore_errors=True)


def _seal(tree: Path) -> None:
    """Read-only for all, whatever the caller's umask is: ranks may run as somebody else; then the list of what is there."""
    listed = sorted(tree.rglob("*"))
    for path in listed:
        path.chmod(0o755 if path.is_dir() else 0o444)
    (tree / SEAL).write_text(_sealed(tree, (path.relative_to(tree).as_posix() for path in listed)), encoding="utf-8")
    (tree / SEAL).chmod(0o444)
    tree.chmod(0o755)


def _compile(tree: Path) -> None:
    """Byte code beside the sources, once: containers mount the tree read-only, and every rank would compile it again.

    Unchecked, since the tree never changes; an interpreter of another version passes it by.
    """
    import compileall
    from py_compile import PycInvalidationMode

    compileall.compile_dir(tree, quiet=2, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
