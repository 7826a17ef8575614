"""What does not fit together in images/: every contradiction of its data, a sentence each. `ci/check-images` prints them."""

import re
from collections.abc import Iterator
from typing import Final

from accelkit.contract.strategies import STRATEGIES
from accelkit.host import render
from accelkit.host.config import syntax
from accelkit.host.errors import KitError
from accelkit.host.image import catalogue
from accelkit.host.image.catalogue import Compatibility, ImageSpec
from accelkit.host.image.inputs import MACHINES
from accelkit.host.image.variants import every, version_key

_DATE: Final = re.compile(r"20\d\d-\d\d-\d\d")


def find() -> list[str]:
    """Contradictions of all images, each starting with the file it is in."""
    problems = []
    for name in catalogue.names():
        try:
            spec, known = catalogue.load(name), catalogue.compatibility(name)
        except KitError as error:
            problems.append(error.message)
            continue
        problems += [f"images/{name}/{text}" for text in (*of_spec(name, spec, known), *of_compatibility(name, known))]
        if not (catalogue.folder(name) / "Dockerfile").is_file():
            problems.append(f"images/{name}/Dockerfile: not there")
    return problems


def of_spec(folder: str, spec: ImageSpec, known: Compatibility) -> Iterator[str]:
    """Contradictions of an image.yaml, by itself and with what is compatible."""
    file = catalogue.SPEC_FILE
    if spec.name != folder:
        yield f"{file}: name is {spec.name}, the folder is {folder}"
    if spec.python not in spec.base:
        yield f"{file}: python {spec.python} has no base"
    defaults = (spec.torch, spec.python, spec.build)
    if defaults not in {(v.torch, v.python, v.name) for v in every(spec, known)}:
        yield f"{file}: its defaults (torch {defaults[0]}, python {defaults[1]}, {defaults[2]}) are no variant"
    if "{build}" not in spec.torch_index and len(known.builds) > 1:
        yield f"{file}: torch_index is the same for every build"
    offered = {python for version in known.torch.values() for python in version.python}
    yield from (f"{file}: base for python {p}, for which there is no torch" for p in spec.base if p not in offered)
    yield from (f"{file}: strategies: {s} is not one" for s in spec.strategies if s not in STRATEGIES or s == "auto")
    yield from (f"{file}: platform {p} is none of {', '.join(MACHINES)}" for p in spec.platforms if p not in MACHINES)
    try:
        syntax.parse_size(spec.shm)
    except ValueError as error:
        yield f"{file}: shm: {error}"


def of_compatibility(folder: str, known: Compatibility) -> Iterator[str]:
    """Contradictions of a compatibility.yaml."""
    file = catalogue.COMPATIBILITY_FILE
    if known.family != folder:
        yield f"{file}: family is {known.family}, the folder is {folder}"
    yield from (f"{file}: source {s.what!r} has no date" for s in known.sources if not _DATE.fullmatch(s.date))
    if not known.sources:
        yield f"{file}: no source"
    if list(known.torch) != sorted(known.torch, key=version_key, reverse=True):
        yield f"{file}: torch versions are not newest first"
    for torch, version in known.torch.items():
        yield from (f"{file}: torch {torch}: no build {b}" for b in version.builds if b not in known.builds)
        if version.package_index is not None and version.package_index not in version.builds:
            yield f"{file}: torch {torch}: package_index {version.package_index} is none of its builds"
        if list(version.python) != sorted(version.python, key=version_key):
            yield f"{file}: torch {torch}: Python versions are not in order"
    used = {build for version in known.torch.values() for build in version.builds}
    yield from (f"{file}: build {b}: no torch version has it" for b in known.builds if b not in used)
    yield from _of_builds(file, known)


def _of_builds(file: str, known: Compatibility) -> Iterator[str]:
    for name, build in known.builds.items():
        digits = re.sub(r"\D", "", name)
        versions = [v for v in (build.cuda, build.rocm) if v is not None and v.replace(".", "") != digits]
        yield from (f"{file}: build {name} is said to be of version {version}" for version in versions)
        if build.cuda and not (build.driver and build.capabilities):
            yield f"{file}: build {name}: driver and capabilities are missing"
        if list(build.capabilities) != sorted(build.capabilities, key=version_key):
            yield f"{file}: build {name}: capabilities are not in order"
    yield from _of_drivers(file, known)


def _of_drivers(file: str, known: Compatibility) -> Iterator[str]:
    """Within a CUDA major version the oldest driver is the same; a newer one does not have an older driver."""
    drivers: dict[int, dict[str, str]] = {}
    for name, build in known.builds.items():
        if build.cuda and build.driver:
            drivers.setdefault(version_key(build.cuda)[0], {})[name] = build.driver
    for major, of_builds in drivers.items():
        if len(set(of_builds.values())) > 1:
            yield f"{file}: builds of CUDA {major} name different oldest drivers: {of_builds}"
    oldest = [version_key(min(d.values(), key=version_key)) for _, d in sorted(drivers.items())]
    if oldest != sorted(oldest):
        yield f"{file}: a newer CUDA names an older driver"


def main() -> int:
    """Print the contradictions; 1 when there are any."""
    problems = find()
    for problem in problems:
        render.out(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
