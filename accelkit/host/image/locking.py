"""Which lock a build goes by, and writing locks: the decisions around kit.lock."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Final, Literal

from accelkit.contract.data import data
from accelkit.host import render
from accelkit.host.config.model import BuildConfig
from accelkit.host.errors import DriftError
from accelkit.host.image import catalogue, drift, inputs, lockfile, registry, variants
from accelkit.host.image.inputs import Inputs
from accelkit.host.image.lockfile import Lock, LockedImage
from accelkit.host.image.resolve import resolve

CONFIG_FILE: Final = "kit.yaml"
"""Where it is, a project is, and a lock belongs beside it."""


@data
class Settled:
    """What a build goes by."""

    inputs: Inputs
    locked: LockedImage | None
    """None: what is resolved when it is built."""


def settle(image: str, config: BuildConfig, folder: Path, *, must: bool = False, write: bool = True) -> Settled:
    """The inputs of a build, and the lock it goes by: the one in `folder` where it fits, a new one where a project has none.

    With `must` there has to be one that fits: DriftError says what does not. Without `write` no lock is written.
    """
    path = folder / lockfile.FILE
    lock = lockfile.read(path) or Lock()
    locked = lock.images.get(image)
    found = inputs.gather(image, preferring(image, config, locked), folder)
    if locked is None:
        if must:
            raise DriftError(f"{path}: there is no lock for image {image}", hint=f"kit lock {image}")
        if write and (folder / CONFIG_FILE).is_file():
            return _first(path, image, found)
        return Settled(inputs=found, locked=None)
    problems = drift.find(locked, found)
    if not problems:
        return Settled(inputs=_with_base(found, locked), locked=locked)
    if must:
        raise DriftError(_listed(path, image, problems), hint=f"kit lock {image} renews it")
    render.warn(f"{_listed(path, image, problems)}\n     building what is asked for now; kit lock {image} renews it")
    return Settled(inputs=found, locked=None)


def check(images: list[str], config: BuildConfig, folder: Path) -> None:
    """Raise DriftError that names everything which does not fit."""
    path = folder / lockfile.FILE
    lock = lockfile.read(path) or Lock()
    told = []
    for image in images:
        locked = lock.images.get(image)
        if locked is None:
            told.append(f"{path}: there is no lock for image {image}")
            continue
        problems = drift.find(locked, inputs.gather(image, preferring(image, config, locked), folder))
        told += [_listed(path, image, problems)] if problems else []
    if told:
        raise DriftError("\n".join(told), hint="kit lock renews it")


def renew(
    image: str, config: BuildConfig, folder: Path, *, upgrade: bool
) -> tuple[Literal["kept", "written"], list[str]]:
    """Lock an image anew where its lock does not fit, or in any case with `upgrade`. Returns what changed."""
    path = folder / lockfile.FILE
    lock = lockfile.read(path) or Lock()
    locked = lock.images.get(image)
    found = inputs.gather(image, config if upgrade else preferring(image, config, locked), folder)
    if locked and not upgrade and not drift.find(locked, found):
        return "kept", []
    lockfile.check_folder(path)
    made = resolve(registry.pinned(found), kept=None if upgrade else locked)
    lockfile.put(path, image, made)
    return "written", drift.changes(locked, made)


def images_of(folder: Path, named: list[str], configured: str) -> list[str]:
    """The images that a command is about: those named, else those of the lock, else the configured one.

    Raises UsageError for a name that none has, before anything is done for the others.
    """
    lock = lockfile.read(folder / lockfile.FILE)
    found = named or sorted(lock.images if lock else ()) or [configured]
    for name in found:
        catalogue.folder(name)
    return found


def preferring(image: str, config: BuildConfig, locked: LockedImage | None) -> BuildConfig:
    """The config, with what is locked where the user says nothing: a new version of kit has other defaults.

    Of torch, its build and Python only as much as goes together with what the user says, and still is in the catalogue; the base is that
    of its Python.
    """
    if locked is None:
        return config
    spec, known = catalogue.load(image), catalogue.compatibility(image)
    kept = {"torch": locked.torch, "python": locked.python, "variant": locked.build}
    if config.cuda:
        del kept["variant"]
    platform = config.platform or (locked.platform if locked.platform in spec.platforms else None)
    for names in (n for count in range(len(kept), -1, -1) for n in combinations(kept, count)):
        some = {name: kept[name] for name in names}
        found = _filled(replace(config, platform=platform), some)
        if variants.exists(spec, known, inputs.wanted(found)):
            same = variants.choose(spec, known, inputs.wanted(found)).python == locked.python
            return replace(found, base=config.base or (locked.base.name if same else None))
    return config


def _filled(config: BuildConfig, kept: dict[str, str]) -> BuildConfig:
    """The config, with these where it says nothing."""
    return replace(
        config,
        torch=config.torch or kept.get("torch"),
        python=config.python or kept.get("python"),
        variant=config.variant or kept.get("variant"),
    )


def _first(path: Path, image: str, found: Inputs) -> Settled:
    """What a project without a lock is built of: it is written down, where that can be."""
    obstacle = lockfile.obstacle(path)
    pinned = registry.pinned(found)
    made = resolve(pinned)
    if obstacle is None:
        lockfile.put(path, image, made)
        render.note(f"wrote {path}: {len(made.packages)} packages of image {image}")
    else:
        render.warn(
            f"{path}: it cannot be written ({obstacle}): "
            f"the {len(made.packages)} packages of image {image} are resolved for this build alone"
            "\n     kit lock in a copy that you may write to writes it; kit build --sbom DIR lists the packages"
        )
    return Settled(inputs=pinned, locked=made)


def _with_base(found: Inputs, locked: LockedImage) -> Inputs:
    return found if found.base.digest else replace(found, base=locked.base)


def _listed(path: Path, image: str, problems: list[str]) -> str:
    return "\n  ".join([f"{path}: the lock of image {image} does not fit:", *problems])
