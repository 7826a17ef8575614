"""Folders that appear whole or not at all.

A new folder is written beside its target under another name and renamed when it is complete. A target that exists (an older
checkpoint, a mount point, a folder with other files in it) cannot be replaced like that: then the new files are written into a folder
inside it, whose renaming to `.complete` is the moment at which they count, and are moved up one by one after that. Readers look
into `.complete` first, so whatever is interrupted, they see all of the old files or all of the new ones.
"""

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from accelkit.runtime.checkpoint import manifest
from accelkit.runtime.checkpoint.manifest import Manifest
from accelkit.runtime.errors import CheckpointError

COMPLETE: Final = ".complete"
_SAVING: Final = ".saving-"
_DELETING: Final = ".deleting-"
_LOCK: Final = ".lock"


def new_token() -> str:
    """A name for one save."""
    return secrets.token_hex(4)


class Staging:
    """A folder that is being written. It is locked while its maker lives, so that nobody takes it for a leftover."""

    def __init__(self, target: Path, token: str) -> None:
        """Make the folder for `target`, after sweeping leftovers of saves that were killed."""
        self.target = target
        target.parent.mkdir(parents=True, exist_ok=True)
        self._inside = target.is_dir()
        if self._inside:
            finish(target)
        home = target if self._inside else target.parent
        sweep(home)
        self.path = home / (f"{_SAVING}{token}" if self._inside else f".{target.name}{_SAVING}{token}")
        self._lock = _make(self.path)

    def commit(self, written: Manifest) -> None:
        """Make the folder the target. All files are on the disk already."""
        written.write(self.path)
        _sync_tree(self.path)
        if self._inside:
            self.path.rename(self.target / COMPLETE)
            sync(self.target)
            finish(self.target)
        else:
            self.path.rename(self.target)
            sync(self.target.parent)
            (self.target / _LOCK).unlink()
        os.close(self._lock)

    def abandon(self) -> None:
        """Remove the folder: the save has failed."""
        os.close(self._lock)
        shutil.rmtree(self.path, ignore_errors=True)


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """A block with a new folder that nobody takes for a leftover; it is removed at the end."""
    descriptor = _make(path)
    try:
        yield
    finally:
        os.close(descriptor)
        shutil.rmtree(path, ignore_errors=True)


def _make(path: Path) -> int:
    """Make a folder, locked until the descriptor that is returned is closed or this process ends.

    Another process that sweeps may take it for a leftover until it is locked: then it is made again.
    """
    while True:
        path.mkdir(exist_ok=True)
        try:
            descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            continue
        if _try_lock(descriptor) is not False and _is_at(descriptor, path / _LOCK):
            return descriptor
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False


def sync(folder: Path) -> None:
    """Bring a folder's list of names to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_tree(folder: Path) -> None:
    for path, _, _ in os.walk(folder):
        sync(Path(path))


def _try_lock(descriptor: int) -> bool | None:
    """Take a lock that ends with this process. False: somebody has it; None: this file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def sweep(home: Path) -> None:
    """Remove what saves and deletions left in a folder when they were killed; what a living process works on stays."""
    for path in home.iterdir():
        if not path.name.startswith(".") or not path.is_dir():
            continue
        if _DELETING in path.name:
            shutil.rmtree(path, ignore_errors=True)
        elif _SAVING in path.name:
            _sweep_one(path)


def _sweep_one(path: Path) -> None:
    try:
        descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # killed before it was locked: then it is empty
        with suppress(OSError):
            path.rmdir()
        return
    try:
        if _try_lock(descriptor):
            delete(path)
    finally:
        os.close(descriptor)


def delete(folder: Path) -> None:
    """Remove a folder: it is gone at once, its files follow; what stays of them when that is interrupted is swept later."""
    doomed = folder.with_name(f".{folder.name.lstrip('.')}{_DELETING}{new_token()}")
    folder.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def finish(target: Path) -> None:
    """Move the files of a complete save up into its target, over older ones; files of the older save that are not replaced go."""
    pending = target / COMPLETE
    if not (pending / manifest.NAME).is_file():
        shutil.rmtree(pending, ignore_errors=True)
        return
    new = manifest.read(pending / manifest.NAME)
    for name in _files_of(target) - set(new.files):
        (target / name).unlink(missing_ok=True)
    for name in new.files:
        if (pending / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (pending / name).replace(target / name)
    (pending / manifest.NAME).replace(target / manifest.NAME)
    sync(target)
    shutil.rmtree(pending, ignore_errors=True)


def _files_of(target: Path) -> set[str]:
    """What the checkpoint in a folder consists of; nothing where there is none, or none that can be read."""
    try:
        return set(manifest.read(target / manifest.NAME).files)
    except (OSError, CheckpointError):
        return set()


def own_files(folder: Path) -> Iterator[str]:
    """Paths within a folder that is being written, of all files in it."""
    for path, _, names in os.walk(folder):
        for name in names:
            within = (Path(path) / name).relative_to(folder).as_posix()
            if within != _LOCK:
                yield within


@dataclass(frozen=True)
class Opened:
    """A complete checkpoint."""

    folder: Path
    manifest: Manifest

    def path(self, name: str) -> Path:
        """Where a file of it lies."""
        pending = self.folder / COMPLETE / name
        return pending if pending.is_file() else self.folder / name

    def has(self, name: str) -> bool:
        """Whether it has a file of that name. Other files in the folder are none of its."""
        return name in self.manifest.files


def open_checkpoint(folder: Path) -> Opened:
    """The checkpoint in a folder, all of its files there and of the right size.

    Raises CheckpointError, with the file and what is wrong, when it is damaged or was never completed.
    """
    pending = folder / COMPLETE / manifest.NAME
    path = pending if pending.is_file() else folder / manifest.NAME
    if not path.is_file():
        raise CheckpointError(
            f"{folder} is not a complete checkpoint: it has no {manifest.NAME}", hint=last_complete(folder)
        )
    try:
        found = Opened(folder, manifest.read(path))
    except CheckpointError as error:
        raise CheckpointError(str(error), hint=last_complete(folder)) from error
    problems = [problem for name in found.manifest.files if (problem := _problem(found, name))]
    if problems:
        raise CheckpointError(
            "\n  ".join([f"{folder} is damaged:", *problems[:5], *(["..."] if len(problems) > 5 else [])]),
            hint=last_complete(folder),
        )
    return found


def _problem(found: Opened, name: str) -> str:
    wanted = found.manifest.files[name].size
    try:
        size = found.path(name).stat().st_size
    except OSError:
        return f"{name} is missing"
    return "" if size == wanted else f"{name} has {size} bytes instead of {wanted}"


def last_complete(folder: Path) -> str:
    """What to do when the checkpoint in `folder` cannot be loaded: the newest complete one beside it."""
    found: list[tuple[str, Path]] = []
    for other in folder.parent.iterdir() if folder.parent.is_dir() else ():
        if other == folder or not other.is_dir():
            continue
        try:
            path = other / COMPLETE / manifest.NAME
            opened = Opened(other, manifest.read(path if path.is_file() else other / manifest.NAME))
        except (OSError, CheckpointError):
            continue
        if not any(_problem(opened, name) for name in opened.manifest.files):
            found.append((opened.manifest.saved, other))
    if not found:
        return "there is no complete checkpoint beside it"
    newest = max(found, key=lambda pair: (pair[0], _natural(pair[1].name)))[1]
    return f"the last complete checkpoint beside it is {newest}: load_state({str(newest)!r})"


def _natural(name: str) -> tuple[int, str]:
    number = name.rpartition("_")[2]
    return (int(number) if number.isdecimal() else -1, name)
