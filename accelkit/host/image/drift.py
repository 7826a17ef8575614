"""What no longer fits between a lock and what is asked for now, by name. Reads the user's wheels, changes nothing."""

from collections.abc import Iterator

from accelkit.host.image import digests
from accelkit.host.image.inputs import Inputs
from accelkit.host.image.lockfile import LockedImage


def find(locked: LockedImage, inputs: Inputs) -> list[str]:
    """Each difference, a sentence that starts with what it is about. Empty: the lock fits."""
    return [*_choices(locked, inputs), *_base(locked, inputs), *_asked(locked, inputs), *_wheels(locked, inputs)]


def _choices(locked: LockedImage, inputs: Inputs) -> Iterator[str]:
    variant = inputs.variant
    pairs = {
        "torch": (locked.torch, variant.torch),
        "variant": (locked.build, variant.name),
        "python": (locked.python, variant.python),
        "platform": (locked.platform, inputs.platform),
    }
    yield from (f"{what}: locked is {old}, asked for is {new}" for what, (old, new) in pairs.items() if old != new)
    if locked.recipe != inputs.recipe:
        yield f"recipe: the Dockerfile, its scripts or its data in images/{inputs.spec.name} are others than those locked"


def _base(locked: LockedImage, inputs: Inputs) -> Iterator[str]:
    old, new = locked.base, inputs.base
    if old.name != new.name:
        yield f"base: locked is {old.name}, asked for is {new.name}"
    elif new.digest and old.digest != new.digest:
        yield f"base: {new.name} is {new.digest} here, locked is {old.digest}"


def _asked(locked: LockedImage, inputs: Inputs) -> Iterator[str]:
    asked = inputs.asked
    yield from (f"requirements: {name} is new" for name in asked if name not in locked.inputs)
    yield from (
        f"requirements: {name} is locked, and not asked for any more" for name in locked.inputs if name not in asked
    )
    yield from (
        f"requirements: {name} has changed"
        for name, digest in asked.items()
        if locked.inputs.get(name, digest) != digest
    )
    if tuple(locked.apt) != inputs.apt:
        yield f"apt: locked are {' '.join(locked.apt) or 'none'}, asked for are {' '.join(inputs.apt) or 'none'}"


def _wheels(locked: LockedImage, inputs: Inputs) -> Iterator[str]:
    for name, package in sorted(locked.packages.items()):
        path = inputs.wheels / package.file if inputs.wheels else None
        if path is not None and path.is_file():
            found = digests.of_file(path)
            if found != package.sha256:
                yield f"{name}: {package.file} in --wheels has sha256 {found}, locked is {package.sha256}"
        elif package.origin == "wheels":
            yield f"{name}: {package.file} came from --wheels, and is not there"


def changes(old: LockedImage | None, new: LockedImage) -> list[str]:
    """What another lock would change, package by package."""
    before, after = old.packages if old else {}, new.packages
    if old is None:
        return [f"{len(after)} packages"]
    lines = [f"+ {n} {after[n].version}" for n in sorted(after) if n not in before]
    lines += [f"- {n} {before[n].version}" for n in sorted(before) if n not in after]
    for name in sorted(before.keys() & after.keys()):
        was, now = before[name], after[name]
        if was.version != now.version:
            lines.append(f"  {name} {was.version} -> {now.version}")
        elif was.sha256 != now.sha256:
            lines.append(f"  {name} {now.version}: another file")
    if old.base != new.base:
        lines.append(f"  base {old.base.name} {old.base.digest[:19]} -> {new.base.name} {new.base.digest[:19]}")
    lines += [f"  {n} {old.debian[n].version if n in old.debian else 'none'} -> {p.version}" for n, p in sorted(new.debian.items())
              if old.debian.get(n) != p]  # fmt: skip
    return lines
