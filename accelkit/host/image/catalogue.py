"""The catalogue of images/: a folder a hardware, its image.yaml and compatibility.yaml read strictly.

A folder dropped in there is a new image. Dataclasses and the contract's codec rather than pydantic: `kit run` reads device rules too.
"""

import datetime as dt
import difflib
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from accelkit.contract import codec
from accelkit.contract.data import data
from accelkit.host import paths
from accelkit.host.errors import KitError, UsageError

T = TypeVar("T")

SPEC_FILE: Final = "image.yaml"
COMPATIBILITY_FILE: Final = "compatibility.yaml"


@data
class DeviceRequest:
    """A request for devices through an engine's device driver."""

    driver: str
    capabilities: tuple[str, ...]


@data
class DeviceRules:
    """How containers get a hardware, and how its presence is told."""

    present: tuple[str, ...] = ()
    """Patterns of files; one of them is there where the hardware is. Empty: it is everywhere."""
    missing: str = ""
    """What to do where it is not there."""
    request: DeviceRequest | None = None
    """Devices are asked of the engine, by UUID."""
    cdi: str | None = None
    """Kind of the CDI devices, which are preferred to the request where the engine has a specification for them."""
    paths: tuple[str, ...] = ()
    """Device files that are passed in, where they are there."""
    groups: tuple[str, ...] = ()
    """Groups of this machine that own the device files."""
    privileged: bool = False
    network: Literal["bridge", "host"] = "bridge"
    memlock: bool = False
    """Locked memory without a limit, where the machine allows it."""
    environment: dict[str, str] = field(default_factory=dict)


@data
class ImageSpec:
    """What image.yaml says."""

    name: str
    summary: str
    python: str
    """Version where the user names none."""
    torch: str
    """Version where the user names none, without a local part."""
    build: str
    """Build of torch where the user names none."""
    torch_index: str
    """PyTorch's own index; `{build}` stands for the build."""
    torch_index_packages: tuple[str, ...]
    """Packages that come from there; all others come from the package index."""
    base: dict[str, str]
    """Base image by Python version."""
    glibc: str
    """Of the base images: newest wheels that they can load."""
    platforms: tuple[str, ...]
    packages: tuple[str, ...]
    """Requirements beside torch."""
    strategies: tuple[str, ...]
    shm: str
    """Default size of /dev/shm."""
    probe: tuple[str, ...]
    """Command that says whether an image works."""
    devices: DeviceRules = field(default_factory=DeviceRules)


@data
class Source:
    """Where a piece of knowledge comes from."""

    what: str
    where: str
    date: str


@data
class Build:
    """A build of torch: the local part of its version."""

    cuda: str | None = None
    rocm: str | None = None
    driver: str | None = None
    """The oldest driver."""
    capabilities: tuple[str, ...] = ()
    """Compute capabilities that its kernels were compiled for; empty: not a matter."""
    forward: bool = False
    """Whether GPUs newer than those work too."""

    @property
    def accelerator(self) -> str:
        """What it was built with, for people."""
        return f"CUDA {self.cuda}" if self.cuda else f"ROCm {self.rocm}" if self.rocm else ""


@data
class TorchVersion:
    """A version of torch."""

    python: tuple[str, ...]
    builds: tuple[str, ...]
    """Preferred first."""
    package_index: str | None = None
    """Which of the builds the package index itself has."""
    together: tuple[str, ...] = ()
    """Requirements that are released for this version (`with` in the file)."""


@data
class Compatibility:
    """What compatibility.yaml says."""

    family: str
    sources: tuple[Source, ...]
    builds: dict[str, Build]
    torch: dict[str, TorchVersion]
    """Newest first."""


def names() -> list[str]:
    """Names of all images."""
    return sorted(p.parent.name for p in paths.data_folder("images").glob(f"*/{SPEC_FILE}"))


def folder(name: str) -> Path:
    """The folder of an image. Raises UsageError that names the nearest one."""
    known = names()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}; kit images describes them"
        raise UsageError(f"no image is named {name!r}", hint=hint)
    return paths.data_folder("images") / name


def scripts() -> Path:
    """The folder of what all Dockerfiles mount while they build."""
    return paths.data_folder("images") / "shared"


def load(name: str) -> ImageSpec:
    """What an image's image.yaml says. Raises UsageError for an unknown name, KitError for a damaged file."""
    return _read(ImageSpec, folder(name) / SPEC_FILE)


def compatibility(name: str) -> Compatibility:
    """What an image's compatibility.yaml says. Raises as :func:`load`."""
    return _read(Compatibility, folder(name) / COMPATIBILITY_FILE)


def read(place: Path) -> tuple[ImageSpec, Compatibility]:
    """The same of an image whose folder lies elsewhere. Raises KitError for a damaged file."""
    return _read(ImageSpec, place / SPEC_FILE), _read(Compatibility, place / COMPATIBILITY_FILE)


def devices(name: str) -> DeviceRules:
    """Device rules of an image; those of a name that is not in the catalogue (an image of the user's own) ask for nothing."""
    return load(name).devices if name in names() else DeviceRules()


def _read(kind: type[T], path: Path) -> T:
    import yaml

    try:
        return codec.from_dict(kind, _plain(_parsed(path)))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, codec.CodecError) as error:
        raise KitError(f"{path}: {error}") from error


@cache
def _parsed(path: Path) -> Any:
    import yaml

    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _plain(value: Any) -> Any:
    """As the codec takes it: dates as text, and `with`, which Python keeps to itself, under its name here."""
    if isinstance(value, dict):
        return {"together" if k == "with" else k: _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return value.isoformat() if isinstance(value, dt.date) else value
