"""Secrets: files that the ranks read, whose values are in no record, no image, no label and no command line.

While a run lives its secrets lie in a folder that only the caller can read, in memory where the system gives one
($XDG_RUNTIME_DIR or /dev/shm); the folder is removed when the run ends, or by `kit runs clean`.
"""

import contextlib
import os
import shutil
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from accelkit.host.config import syntax
from accelkit.host.errors import KitError, UsageError


def folder_of(run_id: str) -> Path:
    """Where the secrets of a run lie while it lives."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    base = Path(runtime) if runtime else Path("/dev/shm")  # noqa: S108  (a folder of our own with mode 0700 in it)
    return base / f"accelkit-{os.getuid()}" / run_id


def plan(run_id: str, entries: Iterable[str]) -> dict[str, str]:
    """Name -> file that will hold the value. Raises UsageError when a name is given twice."""
    found: dict[str, str] = {}
    for entry in entries:
        name, _ = syntax.parse_secret(entry)
        if name in found:
            raise UsageError(f"--secret {name}: given twice")
        found[name] = str(folder_of(run_id) / name)
    return found


def names_of(entries: Iterable[str]) -> tuple[str, ...]:
    """Names alone, for the record."""
    return tuple(sorted(syntax.parse_secret(entry)[0] for entry in entries))


def lay_out(run_id: str, entries: Iterable[str], environ: Mapping[str, str], uid: int | None = None) -> None:
    """Write each secret's file (mode 0400, owned by `uid` where we may). Raises UsageError for a source that is not there."""
    values = {name: _value(name, source, environ) for name, source in map(syntax.parse_secret, entries)}
    if not values:
        return
    folder = folder_of(run_id)
    _make_private(folder.parent)
    _make_private(folder)
    for name, value in values.items():
        handle = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
        with os.fdopen(handle, "wb") as file:
            file.write(value)
        if uid is not None and os.getuid() == 0:
            os.chown(folder / name, uid, -1)


def _make_private(folder: Path) -> None:
    """A folder that is the caller's alone, made or found. Raises KitError for one that somebody else has put there."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise KitError(
                f"{folder}: not a folder of yours, and no place for secrets",
                hint="set XDG_RUNTIME_DIR to a folder that only you can write",
            )
        folder.chmod(0o700)
    except OSError as error:
        raise KitError(
            f"secrets cannot be kept in {folder}: {error.strerror}", hint="set XDG_RUNTIME_DIR to a folder of yours"
        ) from error


def remove(run_id: str) -> bool:
    """Remove a run's secrets; whether there were any."""
    folder = folder_of(run_id)
    found = folder.exists()
    shutil.rmtree(folder, ignore_errors=True)
    return found


def _value(name: str, source: str | None, environ: Mapping[str, str]) -> bytes:
    if source is None:
        if name not in environ:
            raise UsageError(f"--secret {name}: variable {name} is not set", hint=f"give a file: --secret {name}=FILE")
        return environ[name].encode()
    try:
        return Path(source).expanduser().read_bytes()
    except OSError as error:
        raise UsageError(f"--secret {name}={source}: {error.strerror}") from error
