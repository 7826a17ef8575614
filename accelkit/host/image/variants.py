"""Which build of which torch on which Python: a choice among what the compatibility data allows. Pure."""

import re
from typing import Final

from accelkit.contract.data import data
from accelkit.host.errors import UsageError
from accelkit.host.image.catalogue import Build, Compatibility, ImageSpec

_FLAGS: Final = {"build": "variant"}
"""What is typed for it, where that is another word."""


@data
class Wanted:
    """What the user asked for; None: the image's default."""

    torch: str | None = None
    python: str | None = None
    cuda: str | None = None
    build: str | None = None
    package_index_only: bool = False
    """Torch has to come from the package index."""


@data
class Variant:
    """A combination that exists."""

    torch: str
    python: str
    name: str
    """Of the build: cpu, cu130, ..."""
    build: Build
    base: str
    index: str | None
    """Index with this build; None where the package index itself has it and nothing else may be asked."""
    requirements: tuple[str, ...]
    """Torch and what is released for it."""

    @property
    def version(self) -> str:
        """Torch's version as that index names it."""
        return f"{self.torch}+{self.name}" if self.index else self.torch


def choose(spec: ImageSpec, known: Compatibility, wanted: Wanted) -> Variant:
    """The variant of an image that `wanted` means. Raises UsageError for one that does not exist, naming the nearest that does."""
    options = [v for v in every(spec, known) if not wanted.package_index_only or v.index is None]
    if not wanted.package_index_only:
        options = [v for v in options if v.index is not None]
    wishes = _wishes(spec, known, wanted)
    if not options:
        raise UsageError(
            f"image {spec.name}: the package index has none of its builds (--torch-index none)",
            hint="--torch-index URL names an index that has them; without it, PyTorch's own is taken",
        )
    fitting = [v for v in options if all(_value(v, what) == text for what, text in wishes.items())]
    if not fitting:
        raise UsageError(_refusal(spec, options, wishes), hint=_nearest(options, wishes))
    return min(fitting, key=lambda v: _distance_from_default(spec, known, v))


def exists(spec: ImageSpec, known: Compatibility, wanted: Wanted) -> bool:
    """Whether there is such a variant."""
    try:
        choose(spec, known, wanted)
    except UsageError:
        return False
    return True


def every(spec: ImageSpec, known: Compatibility) -> list[Variant]:
    """All variants of an image, newest torch first; those that the package index has come twice, once without another index."""
    found = []
    for torch, version in known.torch.items():
        for python in version.python:
            if python not in spec.base:
                continue
            for name in version.builds:
                indices = [spec.torch_index.format(build=name)]
                for index in (*indices, None) if name == version.package_index else indices:
                    pinned = f"torch=={torch}+{name}" if index else f"torch=={torch}"
                    found.append(
                        Variant(
                            torch=torch, python=python, name=name, build=known.builds[name], base=spec.base[python],
                            index=index, requirements=(pinned, *version.together),
                        )
                    )  # fmt: skip
    return found


def runs_on(build: Build, driver: str | None, capabilities: tuple[str, ...]) -> str:
    """Why a build does not run with a driver and GPUs of these compute capabilities; empty when it does."""
    if build.driver and driver and version_key(driver) < version_key(build.driver):
        return f"{build.accelerator} needs driver {build.driver} or newer; here is {driver}"
    for capability in capabilities:
        if build.capabilities and not _covers(build, capability):
            return f"its kernels are for compute capabilities {', '.join(build.capabilities)}; here is {capability}"
    return ""


def version_key(text: str) -> tuple[int, ...]:
    """The numbers of a version, to be compared."""
    return tuple(int(part) for part in re.findall(r"\d+", text))


def _covers(build: Build, capability: str) -> bool:
    own = version_key(capability)
    compiled = [version_key(c) for c in build.capabilities]
    return any(c[0] == own[0] and c <= own for c in compiled) or (build.forward and own >= max(compiled))


def _wishes(spec: ImageSpec, known: Compatibility, wanted: Wanted) -> dict[str, str]:
    given = {"torch": wanted.torch, "python": wanted.python, "cuda": wanted.cuda, "build": wanted.build}
    wishes = {what: text for what, text in given.items() if text is not None}
    if wanted.cuda is not None and not any(b.cuda for b in known.builds.values()):
        raise UsageError(f"--cuda {wanted.cuda}: the image {spec.name} has nothing to do with CUDA")
    for what, text in wishes.items():
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.]*", text):
            raise UsageError(f"--{_FLAGS.get(what, what)} {text}: not a version")
    return wishes


def _value(variant: Variant, what: str) -> str | None:
    return {
        "torch": variant.torch, "python": variant.python, "cuda": variant.build.cuda, "build": variant.name,
    }[what]  # fmt: skip


def _refusal(spec: ImageSpec, options: list[Variant], wishes: dict[str, str]) -> str:
    asked = ", ".join(f"{what} {text}" for what, text in wishes.items())
    for what, text in wishes.items():
        values = list(dict.fromkeys(str(_value(v, what)) for v in options))
        if text not in values:
            return f"image {spec.name}: there is no {what} {text}; there is {', '.join(values) or 'none'}"
    return f"image {spec.name}: {asked} do not go together"


def _nearest(options: list[Variant], wishes: dict[str, str]) -> str:
    known = {what: [_value(variant, what) or "" for variant in options] for what in wishes}

    def distance(variant: Variant) -> tuple[int, list[int]]:
        apart = [_apart(_value(variant, what) or "", text, known[what]) for what, text in wishes.items()]
        return sum(value > 0 for value in apart), sorted(apart)

    near = min(options, key=distance)
    words = " ".join(f"--{_FLAGS.get(what, what)} {_value(near, what)}" for what in wishes)
    return f"the nearest that exists: {words or f'--torch {near.torch}'}"


def _apart(one: str, other: str, known: list[str]) -> int:
    """How far a version is from another, the first number weighing most; what is beyond all known ones counts as the last of them."""
    if one == other:
        return 0
    within = min(max(version_key(other), min(map(version_key, known))), max(map(version_key, known)))
    pairs = zip((*version_key(one), 0, 0, 0), (*within, 0, 0, 0), (10**6, 10**3, 1), strict=False)
    return max(1, sum(abs(a - b) * weight for a, b, weight in pairs))


def _distance_from_default(spec: ImageSpec, known: Compatibility, variant: Variant) -> tuple[bool, int, bool, int]:
    order = list(known.torch)
    builds = known.torch[variant.torch].builds
    return (
        variant.torch != spec.torch,
        order.index(variant.torch),
        variant.python != spec.python,
        builds.index(variant.name),
    )
