"""Wheels with nothing in them, from which images are resolved and built within moments."""

import base64
import hashlib
import zipfile
from pathlib import Path

from accelkit.host.image import catalogue


def wheel(folder: Path, name: str, version: str, needs: tuple[str, ...] = (), tags: str = "py3-none-any") -> str:
    """Write a wheel of one module; its sha256."""
    path = folder / f"{name}-{version}-{tags}.whl"
    info = f"{name}-{version}.dist-info"
    metadata = "".join(f"Requires-Dist: {need}\n" for need in needs)
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tags}\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
        archive.writestr(f"{info}/RECORD", "".join(map(_recorded, files.items())) + f"{info}/RECORD,,\n")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def of_image(folder: Path) -> None:
    """What the image cpu is made of, torch needing the package `six`."""
    spec = catalogue.load("cpu")
    wheel(folder, "torch", f"{spec.torch}+cpu", ("six",), tags=f"cp{spec.python.replace('.', '')}-none-any")
    for name in spec.packages:
        wheel(folder, name, "1.0")


def _recorded(file: tuple[str, str]) -> str:
    name, text = file
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(text)}\n"
