"""The build contexts and secrets of one build: made in a temporary folder that goes afterwards."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from accelkit.host.image import catalogue
from accelkit.host.image.inputs import Inputs
from accelkit.host.image.lockfile import LockedImage
from accelkit.host.image.output import csv_field

EPOCH: Final = 1735689600
"""The time that everything in a reproducible image has (SOURCE_DATE_EPOCH): 2025-01-01, whenever it is built."""

FETCHED: Final = ("fetch-torch", "fetch-packages", "fetch-debian")
"""Stages that a bundle's folders take the place of."""


@contextmanager
def made(inputs: Inputs, locked: LockedImage, bundle: Path | None, runtime: Path | None) -> Iterator[list[str]]:
    """Options of buildx that name the contexts and secrets."""
    with tempfile.TemporaryDirectory(prefix="accelkit-build-") as name:
        top = Path(name)
        write_locked(top / "locked", locked)
        (top / "empty").mkdir()
        wheels = _without_links(inputs.wheels, top / "wheels") if inputs.wheels else top / "empty"
        options = [f"--build-context=locked={top / 'locked'}", *folders(wheels, bundle, runtime)]
        yield [*options, *_secrets(top, inputs, locked)]


def folders(wheels: Path, bundle: Path | None, runtime: Path | None) -> list[str]:
    """Options of buildx that name the other contexts."""
    options = [
        f"--build-context=shared={bundle / 'shared' if bundle else catalogue.scripts()}",
        f"--build-context=wheels={wheels}",
    ]
    options += [f"--build-context=runtime={runtime}"] if runtime else []
    return options + ([f"--build-context={stage}={bundle / stage}" for stage in FETCHED] if bundle else [])


def _without_links(wheels: Path, copy: Path) -> Path:
    """The folder, or a copy of its wheels where some are links: a context has a link itself, not what it points to."""
    found = list(wheels.glob("*.whl"))
    if not any(path.is_symlink() for path in found):
        return wheels
    copy.mkdir()
    for path in found:
        shutil.copyfile(path, copy / path.name)
    return copy


def write_locked(folder: Path, locked: LockedImage) -> None:
    """The files that the Dockerfile's stages read, one each: a change of one leaves the other stages alone."""
    folder.mkdir()
    (folder / "torch.txt").write_text(locked.requirements("torch"))
    (folder / "packages.txt").write_text(locked.requirements("packages"))
    (folder / "debian.txt").write_text(locked.debian_lines())


def _secrets(top: Path, inputs: Inputs, locked: LockedImage) -> list[str]:
    """The CA, and addresses of indices; PyTorch's own only where a package comes from there, since pip asks every index it knows."""
    options = [secret("ca", inputs.ca)] if inputs.ca else []
    given = {"index": inputs.index_url}
    if any(p.origin == "torch-index" for p in locked.packages.values()):
        given["torch-index"] = inputs.variant.index
    for name, text in given.items():
        if text:
            (top / name).write_text(text)
            options.append(secret(name, top / name))
    return options


def secret(name: str, file: Path) -> str:
    """The option of buildx for a secret that is in a file."""
    return f"--secret=id={name},{csv_field(f'src={file}')}"
