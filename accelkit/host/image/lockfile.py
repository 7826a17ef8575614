"""kit.lock: what an image is made of, down to the last file. Readable, sorted, without times.

An image that is not locked goes through the same data: it is resolved first, and only the file is not written.
"""

import contextlib
import fcntl
import hashlib
import os
import tempfile
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Final, Literal

import yaml

from accelkit.contract import codec
from accelkit.contract.data import data
from accelkit.host.errors import KitError

FILE: Final = "kit.lock"
VERSION: Final = 1

_HEAD: Final = (
    "# What the images of this project are made of. Written by `kit lock`; `kit build` installs nothing else.\n"
    "# Commit it. `kit lock --check` says whether it still fits, `kit lock --upgrade` takes newer versions.\n"
)

_MEND: Final = "restore the file, or delete it: kit lock then writes it anew"

Layer = Literal["torch", "packages"]


@data
class Package:
    """A Python package, as the wheel that is installed."""

    version: str
    file: str
    sha256: str
    origin: Literal["index", "torch-index", "wheels"] = "index"
    """Where it was found: the package index, PyTorch's own, or the user's wheels."""
    layer: Layer = "packages"
    """The layer of the image that it is in."""


@data
class DebianPackage:
    """A Debian package that is installed on top of the base."""

    version: str
    file: str
    sha256: str


@data
class LockedBase:
    """The base image: its name, and the digest that this name meant."""

    name: str
    digest: str
    """Repository digest, or the engine's ID of an image that was made on this machine."""


@data
class LockedImage:
    """An image."""

    torch: str
    build: str
    """Build of torch: cpu, cu130, ..."""
    python: str
    platform: str
    base: LockedBase
    recipe: str
    """Digest of the Dockerfile, the scripts it mounts and the image's data."""
    inputs: dict[str, str] = field(default_factory=dict)
    """What the user asked for -> its digest: requirements files, the project's file."""
    apt: tuple[str, ...] = ()
    """Debian packages that the user asked for."""
    debian: dict[str, DebianPackage] = field(default_factory=dict)
    """Those and what they need beyond the base."""
    packages: dict[str, Package] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Of all of it."""
        return f"sha256:{hashlib.sha256(codec.dumps(ordered(self)).encode()).hexdigest()}"

    def requirements(self, layer: Layer) -> str:
        """A layer's packages as pip takes them, one a line."""
        return "".join(
            f"{name}=={p.version} --hash=sha256:{p.sha256}\n"
            for name, p in sorted(self.packages.items())
            if p.layer == layer
        )

    def debian_lines(self) -> str:
        """Debian packages as fetch-debian.sh takes them, one a line."""
        return "".join(f"{name} {p.version} {p.sha256} {p.file}\n" for name, p in sorted(self.debian.items()))


@data
class Lock:
    """The whole file."""

    version: int = VERSION
    images: dict[str, LockedImage] = field(default_factory=dict)


def read(path: Path) -> Lock | None:
    """The lock in a file; None when there is no such file. Raises KitError that names what is damaged."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise KitError(f"{path}: {error}", hint=_MEND) from error
    try:
        found = codec.from_dict(Lock, yaml.safe_load(text))
    except (yaml.YAMLError, codec.CodecError) as error:
        raise KitError(f"{path}: {error}", hint=_MEND) from error
    if found.version != VERSION:
        raise KitError(f"{path}: version {found.version}; this kit reads version {VERSION}", hint=_MEND)
    return found


def text(lock: Lock) -> str:
    """The file's text."""
    document = codec.to_dict(replace(lock, images={n: ordered(i) for n, i in sorted(lock.images.items())}))
    return _HEAD + yaml.safe_dump(_lean(document), sort_keys=False, width=1000, allow_unicode=True)


def write(path: Path, lock: Lock) -> None:
    """Write the file, all of it or nothing."""
    codec.write_text(path, text(lock))


def check_folder(path: Path) -> None:
    """Raise KitError where the file cannot be written: asked before anything is resolved for it, which takes its time."""
    why = obstacle(path)
    if why is not None:
        raise KitError(f"{path}: it cannot be written: {why}", hint="work in a folder that you may write to")


def obstacle(path: Path) -> str | None:
    """Why the file cannot be written; None: it can."""
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            return None
    except OSError as error:
        return error.strerror or str(error)


def put(path: Path, name: str, image: LockedImage) -> None:
    """Write one image into the file, leaving the others as they are at that moment; one process after another.

    The folder itself is what is held, so that nothing more lies beside the file. Raises KitError for a file that is damaged.
    """
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(folder, fcntl.LOCK_EX)
        lock = read(path) or Lock()
        write(path, replace(lock, images={**lock.images, name: image}))
    finally:
        os.close(folder)


def ordered(image: LockedImage) -> LockedImage:
    """The same, in the order in which it is written."""
    return replace(
        image,
        inputs=dict(sorted(image.inputs.items())),
        apt=tuple(sorted(image.apt)),
        debian=dict(sorted(image.debian.items())),
        packages=dict(sorted(image.packages.items())),
    )


def _lean(value: Any) -> Any:
    """Without what is empty."""
    if isinstance(value, dict):
        return {k: _lean(v) for k, v in value.items() if v not in ({}, [], None)}
    return value
