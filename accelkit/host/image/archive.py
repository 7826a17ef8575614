"""Image archives compared, layer by layer and file by file: the first thing that differs is named.

An archive is what `docker save` and BuildKit write: a tar with an OCI layout in it.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

from accelkit.contract.data import data
from accelkit.host.errors import KitError

_INDEX: Final = "index.json"


@data
class Entry:
    """A file of a layer, reduced to what is compared."""

    path: str
    what: tuple[Any, ...]
    """Type, mode, owner, size, time, link target, digest of the content."""


def manifest(path: Path) -> dict[str, Any]:
    """The image's manifest. Raises KitError where the archive holds none, or several."""
    with tarfile.open(path) as archive:
        return _manifest(archive, path)


def first_difference(one: Path, other: Path) -> str | None:
    """What differs first between two archives of an image, for people; None: they hold the same image, bit for bit."""
    with tarfile.open(one) as a, tarfile.open(other) as b:
        left, right = _manifest(a, one), _manifest(b, other)
        if left == right:
            return None
        for number, (x, y) in enumerate(zip(left["layers"], right["layers"], strict=False), 1):
            if x["digest"] != y["digest"]:
                found = _first_in_layer(_blob(a, x["digest"]), _blob(b, y["digest"]))
                return f"layer {number}: {found or 'the same files, packed in another way'}"
        if len(left["layers"]) != len(right["layers"]):
            return f"{len(left['layers'])} layers, and {len(right['layers'])}"
        return f"the config: {_first_key(*(json.load(_blob(t, m['config']['digest'])) for t, m in ((a, left), (b, right))))}"


def _manifest(archive: tarfile.TarFile, path: Path) -> dict[str, Any]:
    try:
        index: dict[str, Any] = json.load(_file(archive, _INDEX))
    except KeyError as error:
        raise KitError(f"{path}: no OCI layout in it; the engine needs the containerd image store") from error
    while "manifests" in index:
        images = [m for m in index["manifests"] if m.get("platform", {}).get("architecture") != "unknown"]
        if len(images) != 1:
            raise KitError(f"{path}: {len(images)} images in it, not one")
        index = json.load(_blob(archive, images[0]["digest"]))
    return index


def _first_in_layer(one: IO[bytes], other: IO[bytes]) -> str | None:
    left, right = {e.path: e.what for e in _entries(one)}, {e.path: e.what for e in _entries(other)}
    for path, what in left.items():
        if path not in right:
            return f"/{path} is in one and not in the other"
        if what != right[path]:
            names = ("type", "mode", "owner", "size", "time", "link", "content")
            differs = [n for n, x, y in zip(names, what, right[path], strict=True) if x != y]
            return f"/{path} differs ({', '.join(differs)})"
    return next((f"/{path} is in one and not in the other" for path in right if path not in left), None)


def _entries(layer: IO[bytes]) -> Iterator[Entry]:
    with tarfile.open(fileobj=layer, mode="r|*") as content:
        for member in content:
            data = content.extractfile(member) if member.isfile() else None
            digest = hashlib.sha256(data.read()).hexdigest() if data else ""
            yield Entry(
                path=member.name,
                what=(
                    member.type,
                    member.mode,
                    (member.uid, member.gid),
                    member.size,
                    member.mtime,
                    member.linkname,
                    digest,
                ),
            )


def _first_key(one: Any, other: Any, where: str = "") -> str:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            if one.get(key) != other.get(key):
                return _first_key(one.get(key), other.get(key), f"{where}.{key}" if where else key)
    return f"{where} is {one!r}, and {other!r}"


def _blob(archive: tarfile.TarFile, digest: str) -> IO[bytes]:
    return _file(archive, f"blobs/{digest.replace(':', '/')}")


def _file(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    return archive.extractfile(name) or io.BytesIO()
