"""Bundles: a folder with everything that an image is made of, for a machine without any network.

kit.lock                      the one image's lock
base.tar                      the base image (docker load)
recipe/  shared/              the Dockerfile with its data, and the scripts that it mounts
fetch-torch/ fetch-packages/  wheels       fetch-debian/  Debian packages
sbom.spdx.json provenance.json
SHA256SUMS                    of all that: sha256sum --check SHA256SUMS
"""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from accelkit.host import process
from accelkit.host.errors import BuildError, DriftError, KitError, UsageError
from accelkit.host.image import build, catalogue, contexts, digests, inputs, lockfile, sbom, variants
from accelkit.host.image.build import BuildPlan
from accelkit.host.image.inputs import Inputs
from accelkit.host.image.lockfile import Lock, LockedImage
from accelkit.host.image.output import Output, csv_field

SUMS: Final = "SHA256SUMS"
BASE: Final = "base.tar"
RECIPE: Final = "recipe"
TARGET: Final = "fetched"
"""Stage of the Dockerfiles that holds what was fetched, and nothing else."""


def check(folder: Path) -> None:
    """Raise UsageError for a folder that no bundle can be written into: it must not be there, or be empty."""
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"{folder}: not empty", hint="name a folder that is not there yet")
    above = _nearest(folder)
    if not above.is_dir():
        raise UsageError(f"{folder}: {above} is no folder", hint="name a folder that is not there yet")


def write(folder: Path, found: Inputs, locked: LockedImage, show: Callable[[str], None]) -> int:
    """Write a bundle into `folder`, which must not be there or be empty. Returns its size in bytes.

    It is made beside its place (in it, where the folder is there already), and moved when it is whole: nothing is left of one that failed.
    """
    check(folder)
    with tempfile.TemporaryDirectory(prefix=".accelkit-bundle-", dir=_nearest(folder)) as name:
        made = Path(name) / "bundle"
        made.mkdir()
        _fill(made, found, locked, show)
        size = sum(p.stat().st_size for p in made.rglob("*") if p.is_file())
        _move(made, folder)
    return size


def _fill(folder: Path, found: Inputs, locked: LockedImage, show: Callable[[str], None]) -> None:
    name = found.spec.name
    shutil.copytree(catalogue.folder(name), folder / RECIPE)
    shutil.copytree(catalogue.scripts(), folder / "shared")
    lockfile.write(folder / lockfile.FILE, Lock(images={name: locked}))
    _fetch(folder, found, locked, show)
    _docker("save", "--output", str(folder / BASE), found.base.name)
    shutil.copymode(folder / lockfile.FILE, folder / BASE)  # docker save's own is for its caller alone
    (folder / "sbom.spdx.json").write_text(sbom.spdx(name, locked))
    (folder / "provenance.json").write_text(sbom.provenance(name, locked, _digests(folder)))
    (folder / SUMS).write_text("".join(f"{digest}  {path}\n" for path, digest in sorted(_digests(folder).items())))


def _move(made: Path, folder: Path) -> None:
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        made.rename(folder)
        return
    for path in sorted(made.iterdir(), key=lambda path: path.name == SUMS):
        path.rename(folder / path.name)


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def read(folder: Path, image: str) -> LockedImage:
    """The lock in a bundle, after every file was checked. Raises DriftError that names one that is not what was written."""
    if not (folder / SUMS).is_file():
        raise UsageError(f"--from-bundle {folder}: not a bundle (no {SUMS})", hint="kit bundle writes one")
    written = _written(folder / SUMS)
    there = _digests(folder)
    for path in sorted(written.keys() | there.keys()):
        if path not in there:
            raise DriftError(f"{folder / path}: missing in the bundle")
        if path not in written:
            raise DriftError(f"{folder / path}: no part of the bundle", hint="move it elsewhere")
        if written[path] != there[path]:
            raise DriftError(f"{folder / path}: not what the bundle was made with")
    lock = lockfile.read(folder / lockfile.FILE) or Lock()
    if image not in lock.images:
        raise UsageError(f"--from-bundle {folder}: it is of image {', '.join(lock.images)}, not of {image}")
    return lock.images[image]


def _written(sums: Path) -> dict[str, str]:
    """Path -> digest, of the file that sha256sum reads too. Raises DriftError that names a line which is none."""
    found = {}
    for number, line in enumerate(sums.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        digest, blanks, path = line.partition("  ")
        if not (digest and blanks and path):
            raise DriftError(
                f"{sums}:{number}: {line!r} is not a digest, two blanks and a path", hint="copy the bundle anew"
            )
        found[path] = digest
    return found


def inputs_of(folder: Path, locked: LockedImage) -> Inputs:
    """The inputs of a build from a bundle, whose base image is loaded where the engine lacks it.

    What the image is stands in the bundle's recipe: the images of this kit may be others by now.
    """
    spec, known = catalogue.read(folder / RECIPE)
    has = (locked.torch, locked.build, locked.python)
    fitting = [v for v in variants.every(spec, known) if (v.torch, v.name, v.python) == has]
    if not fitting:
        raise DriftError(
            f"{folder / RECIPE}: torch {locked.torch}+{locked.build} for Python {locked.python} is not in its data"
        )
    _load_base(folder, locked)
    return Inputs(
        spec=spec, variant=fitting[0], platform=locked.platform, base=locked.base, base_is_here=True, recipe=locked.recipe,
        requirements=(), apt=locked.apt, wheels=None, torch_wheel=False, index_url=None, ca=None, network="none", proxies=(),
    )  # fmt: skip


def _load_base(folder: Path, locked: LockedImage) -> None:
    """Raises DriftError where the engine has another base afterwards."""
    base = locked.base
    if inputs.base_digest(base.name) != base.digest:
        _docker("load", "--quiet", "--input", str(folder / BASE))
    if (here := inputs.base_digest(base.name)) != base.digest:
        raise DriftError(f"base: {base.name} is {here} here, locked is {base.digest}")


def _fetch(folder: Path, found: Inputs, locked: LockedImage, show: Callable[[str], None]) -> None:
    """What the fetch stages hold, without the rest of their file systems."""
    with contexts.made(found, locked, None, None) as extra:
        words = [
            w
            for w in build.argv(_plan(found, locked))
            if not w.startswith(("--target", "--tag", "--label", "--output", "--load"))
        ]
        context = catalogue.folder(found.spec.name)
        argv = [
            *words,
            f"--target={TARGET}",
            f"--output=type=local,{csv_field(f'dest={folder}')}",
            *extra,
            str(context),
        ]
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
    return {path: digest for path, digest in digests.of_files(folder).items() if path != SUMS}


def _docker(*words: str) -> None:
    done = process.run(["docker", *words])
    if done.code:
        raise KitError(f"docker {words[0]}: {done.stderr.strip() or done.stdout.strip()}")
