"""What is installed, from the names of metadata folders: every run records it, and reading each file would take a tenth of a second.

Names and versions stand in the folders' names: https://packaging.python.org/en/latest/specifications/binary-distribution-format/
(`{name}-{version}.dist-info`, with `-` and other separators written as `_`).
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator


def installed(path: Iterable[str] | None = None) -> dict[str, str]:
    """Every distribution on `path` (default: `sys.path`): normalized name -> version, sorted; of two, the one that is imported."""
    found: dict[str, str] = {}
    for folder in dict.fromkeys(sys.path if path is None else path):
        for name, version in _in(folder or "."):
            found.setdefault(name, version)
    return dict(sorted(found.items()))


def _in(folder: str) -> Iterator[tuple[str, str]]:
    try:
        entries = sorted(os.listdir(folder))
    except OSError:  # an archive, a file, or nothing at all
        return
    for entry in entries:
        stem, kind = os.path.splitext(entry)
        if kind == ".dist-info":
            name, _, version = stem.partition("-")
            metadata = os.path.join(folder, entry, "METADATA")  # what a broken removal has left is without it
            if version and os.path.exists(metadata):
                yield normalized(name), version
        elif kind == ".egg-info":
            yield from _old(os.path.join(folder, entry))


def _old(path: str) -> Iterator[tuple[str, str]]:
    """Setuptools' own format, which need not tell the version in its name."""
    metadata = os.path.join(path, "PKG-INFO") if os.path.isdir(path) else path
    try:
        with open(metadata, encoding="utf-8", errors="replace") as file:
            fields = dict(re.findall(r"^(Name|Version): *(\S+)", file.read().partition("\n\n")[0], re.MULTILINE))
    except OSError:
        return
    if "Name" in fields and "Version" in fields:
        yield normalized(fields["Name"]), fields["Version"]


def normalized(name: str) -> str:
    """A distribution's name as indexes compare it: `Foo.Bar_baz` is `foo-bar-baz`."""
    return re.sub(r"[-_.]+", "-", name).lower()
