"""Bundles: a folder with everything that an image is made of, for a machine without any network.

kit.lock                      the one image's lock
base.tar                      the base image (docker load)
recipe/  shared/              the Dockerfile with its data, and the scripts that it mounts
fetch-torch/ fetch-packages/  wheels       fetch-debian/  Debian packages
sbom.spdx.json provenance.json
SHA256SUMS                    of all that: sha256sum --check SHA256SUMS
"""

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from accelkit.host import process
from accelkit.host.config.model import BuildConfig
from accelkit.host.errors import BuildError, DriftError, KitError, UsageError
from accelkit.host.image import build, catalogue, contexts, inputs, lockfile, sbom
from accelkit.host.image.build import BuildPlan
from accelkit.host.image.inputs import Inputs
from accelkit.host.image.lockfile import Lock, LockedImage
from accelkit.host.image.output import Output

SUMS: Final = "SHA256SUMS"
BASE: Final = "base.tar"
TARGET: Final = "fetched"
"""Stage of the Dockerfiles that holds what was fetched, and nothing else."""


def write(folder: Path, found: Inputs, locked: LockedImage, show: Callable[[str], None]) -> int:
    """Write a bundle into `folder`, which must not be there or be empty. Returns its size in bytes."""
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder}: not empty", hint="name a folder that is not there yet")
    folder.mkdir(parents=True, exist_ok=True)
    name = found.spec.name
    shutil.copytree(catalogue.folder(name), folder / "recipe")
    shutil.copytree(catalogue.scripts(), folder / "shared")
    lockfile.write(folder / lockfile.FILE, Lock(images={name: locked}))
    _fetch(folder, found, locked, show)
    _docker("save", "--output", str(folder / BASE), found.base.name)
    (folder / "sbom.spdx.json").write_text(sbom.spdx(name, locked))
    (folder / "provenance.json").write_text(sbom.provenance(name, locked))
    (folder / SUMS).write_text("".join(f"{digest}  {path}\n" for path, digest in sorted(_digests(folder).items())))
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


def read(folder: Path, image: str) -> LockedImage:
    """The lock in a bundle, after every file was checked. Raises DriftError that names one that is not what was written."""
    if not (folder / SUMS).is_file():
        raise UsageError(f"--from-bundle {folder}: not a bundle (no {SUMS})", hint="kit bundle writes one")
    lines = [line.split("  ", 1) for line in (folder / SUMS).read_text().splitlines()]
    written = {path: digest for digest, path in lines}
    there = _digests(folder)
    for path in sorted(written.keys() | there.keys()):
        if path not in there:
            raise DriftError(f"{folder / path}: missing in the bundle")
        if written.get(path) != there[path]:
            raise DriftError(f"{folder / path}: not what the bundle was made with")
    lock = lockfile.read(folder / lockfile.FILE) or Lock()
    if image not in lock.images:
        raise UsageError(f"--from-bundle {folder}: it is of image {', '.join(lock.images)}, not of {image}")
    return lock.images[image]


def inputs_of(folder: Path, image: str, locked: LockedImage) -> Inputs:
    """The inputs of a build from a bundle, whose base image is loaded where the engine lacks it."""
    wanted = BuildConfig(
        torch=locked.torch, python=locked.python, variant=locked.build, platform=locked.platform, base=locked.base.name
    )
    found = inputs.gather(image, wanted, folder)
    if found.base.digest != locked.base.digest:
        _docker("load", "--quiet", "--input", str(folder / BASE))
        found = inputs.gather(image, wanted, folder)
    if found.base.digest != locked.base.digest:
        raise DriftError(f"base: {locked.base.name} is {found.base.digest} here, locked is {locked.base.digest}")
    return replace(found, network="none", proxies=())


def _fetch(folder: Path, found: Inputs, locked: LockedImage, show: Callable[[str], None]) -> None:
    """What the fetch stages hold, without the rest of their file systems."""
    with contexts.made(found, locked, None, None) as extra:
        words = [
            w
            for w in build.argv(_plan(found, locked))
            if not w.startswith(("--target", "--tag", "--label", "--output", "--load"))
        ]
        context = catalogue.folder(found.spec.name)
        argv = [*words, f"--target={TARGET}", f"--output=type=local,dest={folder}", *extra, str(context)]
        child = process.Child(argv, stderr=process.TO_STDOUT)
        lines = []
        try:
            for line in child.lines():
                lines.append(line)
                show(line)
            code = child.wait()
        finally:
            child.kill_group()
    if code:
        raise BuildError("\n  ".join(["fetching for the bundle failed", *lines[-10:]]))


def _plan(found: Inputs, locked: LockedImage) -> BuildPlan:
    return build.plan(found, build.Options(output=Output()), locked)


def _digests(folder: Path) -> dict[str, str]:
    found = {}
    for path in folder.rglob("*"):
        if path.is_file() and path.name != SUMS:
            with path.open("rb") as file:
                total = hashlib.sha256()
                while block := file.read(1 << 20):
                    total.update(block)
            found[path.relative_to(folder).as_posix()] = total.hexdigest()
    return found


def _docker(*words: str) -> None:
    done = process.run(["docker", *words])
    if done.code:
        raise KitError(f"docker {words[0]}: {done.stderr.strip() or done.stdout.strip()}")
