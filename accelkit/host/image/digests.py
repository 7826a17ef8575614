"""Digests of files and folders."""

import hashlib
from pathlib import Path


def of_file(path: Path) -> str:
    """sha256 of a file's content, in hexadecimal digits."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            total.update(block)
    return total.hexdigest()


def of_files(folder: Path) -> dict[str, str]:
    """Every file below a folder, by its path in it, and its sha256."""
    return {p.relative_to(folder).as_posix(): of_file(p) for p in sorted(folder.rglob("*")) if p.is_file()}
