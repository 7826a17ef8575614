"""What goes into an image, before anything is resolved: decided and checked from the config, the catalogue and the engine."""

import hashlib
import os
import platform as machine
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from accelkit.contract import codec
from accelkit.contract.data import data
from accelkit.host import render
from accelkit.host.config.model import BuildConfig
from accelkit.host.engine import client as engine
from accelkit.host.errors import ImageNotFound, UsageError
from accelkit.host.image import catalogue, pyproject, requirements, uv, variants
from accelkit.host.image.catalogue import ImageSpec
from accelkit.host.image.lockfile import LockedBase
from accelkit.host.image.names import without_logins
from accelkit.host.image.requirements import Requirements
from accelkit.host.image.variants import Variant, Wanted

_PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
MACHINES: Final = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}
"""Platform -> what wheels call its machine."""
_TORCH_WHEEL: Final = re.compile(r"torch-(?P<torch>[0-9.]+)(?:\+(?P<build>[^-]+))?-cp(?P<python>\d+)-")
_END: Final = 1 << 16
"""Bytes of a wheel that are looked at."""
NO_TORCH_INDEX: Final = "none"
"""As --torch-index: PyTorch's builds come from the package index."""


@data
class Inputs:
    """Everything that decides what an image will be."""

    spec: ImageSpec
    variant: Variant
    platform: str
    base: LockedBase
    base_is_here: bool
    """Whether the engine has the base: then its name means it, else it is pulled by its digest."""
    recipe: str
    """Digest of Dockerfile, scripts and data."""
    requirements: tuple[Requirements, ...]
    apt: tuple[str, ...]
    wheels: Path | None
    torch_wheel: bool
    """Whether torch is among the user's wheels."""
    index_url: str | None
    ca: Path | None
    network: str | None
    proxies: tuple[str, ...]
    """Names of proxy variables that are set."""

    @property
    def asked(self) -> dict[str, str]:
        """Requirements by name -> digest, as the lock keeps them: each file by as much of its path as no other has before it."""
        found: dict[str, str] = {}
        for item in self.requirements:
            parts = item.path.parts
            names = ("/".join(parts[-count:]) for count in range(1, len(parts) + 1))
            found[next((name for name in names if name not in found), str(item.path))] = item.digest
        return found

    @property
    def digest(self) -> str:
        """Of all that, contents included. The same digest needs no second build."""
        total = hashlib.sha256(codec.dumps([
            self.spec, self.variant.requirements, self.variant.name, self.variant.python, self.variant.index, self.platform, self.base,
            self.recipe, [r.digest for r in self.requirements], self.apt, listing(self.wheels), self.index_url,
        ]).encode())  # fmt: skip
        return f"sha256:{total.hexdigest()}"


def gather(name: str, config: BuildConfig, folder: Path) -> Inputs:
    """The inputs of image `name`; paths are relative to `folder`. Raises UsageError for what cannot be."""
    spec, known = catalogue.load(name), catalogue.compatibility(name)
    ca = _existing("--ca", config.ca, folder, Path.is_file, "a file")
    wheels = _existing("--wheels", config.wheels, folder, Path.is_dir, "a folder")
    variant = variants.choose(spec, known, wanted(config))
    if config.torch_index and variant.index:
        variant = _with_index(variant, config.torch_index)
    platform = _platform(config, spec)
    base = config.base or variant.base
    asked = requirements.gather(config.requirements, config.project, folder)
    _check_address("--index-url", config.index_url)
    for item in asked:
        _check_places(item, spec, config)
        _check_project(item, spec, variant, config, wheels, ca)
    digest = base_digest(base)
    return Inputs(
        spec=spec,
        variant=variant,
        platform=platform,
        base=LockedBase(name=base, digest=digest),
        base_is_here=bool(digest),
        recipe=recipe_digest(name),
        requirements=asked,
        apt=tuple(sorted(set(config.apt))),
        wheels=wheels,
        torch_wheel=torch_wheel(name, variant, wheels),
        index_url=config.index_url,
        ca=ca,
        network=config.network,
        proxies=tuple(p for p in _PROXIES if p in os.environ),
    )


def _check_places(item: Requirements, spec: ImageSpec, config: BuildConfig) -> None:
    """Raise UsageError for a requirements file that names another index than kit was told of; PyTorch's own is the image's matter."""
    own = spec.torch_index.partition("{")[0]
    for number, option, address in requirements.places(item):
        if config.index_url is None and config.wheels is None and not address.startswith(own):
            raise UsageError(
                f"{item.path}:{number}: {option} {without_logins(address)}: kit asks no index but the one that is named to it",
                hint="--index-url URL names an index that has all packages, --wheels DIR a folder of wheels; then the line is ignored",
            )


def _check_address(flag: str, url: str | None) -> None:
    if url is not None and not url.startswith(("http://", "https://")):
        raise UsageError(
            f"{flag} {without_logins(url)}: not an address of http", hint="--wheels DIR names a folder of wheels"
        )


def _check_project(
    item: Requirements, spec: ImageSpec, variant: Variant, config: BuildConfig, wheels: Path | None, ca: Path | None
) -> None:
    """Raise UsageError where a project does not fit the image; what of its settings has no effect is told."""
    project, specifier = item.project, item.requires_python
    if specifier and not pyproject.allows(specifier, variant.python):
        there = catalogue.compatibility(spec.name).torch[variant.torch].python
        fitting = [python for python in there if pyproject.allows(specifier, python)]
        raise UsageError(
            f"{item.path}: requires-python is {specifier}, the image {spec.name} gets Python {variant.python}",
            hint=f"--python {' or '.join(fitting)}"
            if fitting
            else f"torch {variant.torch} is there for {', '.join(there)}",
        )
    if item.kind == "uv.lock":
        uv.check_lock(item.path, ca)
    elif project is not None:
        pyproject.check_places(project, spec.torch_index_packages, wheels, config.index_url)
        if (above := uv.lock_above(project)) is not None:
            render.warn(
                f"{item.path}: resolved anew, beside {above}, which has locked it with its workspace"
                f"\n     in {above.parent}: uv export --no-emit-project --package {project.name} -o FILE, for --requirements FILE"
            )
        if project.without_effect:
            render.warn(
                f"{item.path}: {', '.join(project.without_effect)}: without effect here; uv lock writes a uv.lock by it, which kit takes"
            )


def wanted(config: BuildConfig) -> Wanted:
    """What the config says of the variant."""
    return Wanted(
        torch=config.torch, python=config.python, cuda=config.cuda, build=config.variant,
        package_index_only=config.torch_index == NO_TORCH_INDEX,
    )  # fmt: skip


def torch_wheel(image: str, variant: Variant, wheels: Path | None) -> bool:
    """Whether the user's wheels hold this variant's torch. Raises UsageError where they hold only others: none would be meant."""
    found = [m for path in sorted(wheels.glob("torch-*.whl")) if (m := _TORCH_WHEEL.match(path.name))] if wheels else []
    python = variant.python.replace(".", "")
    for match in found:
        if match["torch"] == variant.torch and match["python"] == python and match["build"] in (variant.name, None):
            return match["build"] is None or variant.index is not None
    if found:
        have = ", ".join(m.string for m in found)
        raise UsageError(
            f"--wheels: {have} is not what the image {image} needs: torch {variant.torch}+{variant.name} for Python {variant.python}",
            hint="put that wheel there, leave torch out of the folder, or choose with --torch, --python and --variant",
        )
    return False


def recipe_digest(name: str) -> str:
    """Of the image's folder and of the scripts that its Dockerfile mounts."""
    total = hashlib.sha256()
    for top in (catalogue.folder(name), catalogue.scripts()):
        for path in sorted(p for p in top.rglob("*") if p.is_file()):
            total.update(
                f"{path.relative_to(top).as_posix()} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode()
            )
    return f"sha256:{total.hexdigest()}"


def base_digest(name: str) -> str:
    """Repository digest of the base image here, or its ID where it is of no repository; empty when it is still to be pulled."""
    client = engine.connect()
    with engine.engine_errors(f"looking for the base image {name}"):
        try:
            found = engine.find_image(client, name)
        except ImageNotFound:
            return ""
    known = [d.partition("@")[2] for d in found.digests]
    return found.id if found.id in known or not known else known[0]


def listing(wheels: Path | None) -> list[str]:
    """Names, sizes and ends of the wheels: enough to see that there are others now. A wheel's end has the checksum of its list of files."""
    found = sorted(wheels.glob("*.whl")) if wheels else []
    return [f"{path.name}:{path.stat().st_size}:{_end(path)}" for path in found]


def _end(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(-min(_END, path.stat().st_size), os.SEEK_END)
        return hashlib.sha256(file.read()).hexdigest()


def _platform(config: BuildConfig, spec: ImageSpec) -> str:
    """The platform that is built for. Raises UsageError for one that the image is not made for, or that no wheels are known for."""
    platform = config.platform or f"linux/{_ARCHITECTURES.get(machine.machine(), machine.machine())}"
    allowed = [known for known in spec.platforms if known in MACHINES]
    if platform not in allowed:
        raise UsageError(f"--platform {platform}: image {spec.name} is made for {', '.join(allowed)}")
    return platform


def _with_index(variant: Variant, url: str) -> Variant:
    _check_address("--torch-index", url)
    index = url.replace("{build}", variant.name)
    if "{" in index or "}" in index:
        raise UsageError(
            f"--torch-index {without_logins(url)}: braces that are not {{build}}",
            hint="only {build} stands for something",
        )
    return replace(variant, index=index)


def _existing(flag: str, text: str | None, folder: Path, fits: Callable[[Path], bool], what: str) -> Path | None:
    if text is None:
        return None
    path = folder / Path(text).expanduser()
    if not fits(path):
        raise UsageError(f"{flag} {text}: {f'not {what}' if path.exists() else 'not there'}")
    return path.resolve()
