"""The catalogue of images/: a folder a hardware, its image.yaml read strictly."""

import difflib
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from accelkit.host import paths
from accelkit.host.errors import KitError, UsageError


class ImageSpec(BaseModel):
    """What image.yaml says."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    summary: str
    base: str
    """Base image where the user names none."""
    torch: str
    """Version, without a local part."""
    torch_index: str
    """PyTorch's own index for this hardware."""
    packages: tuple[str, ...]
    strategies: tuple[str, ...]
    shm: str
    """Default size of /dev/shm."""
    devices: str
    """How containers get this hardware: none."""
    probe: tuple[str, ...]
    """Command that says whether an image works."""


def names() -> list[str]:
    """Names of all images."""
    return sorted(p.parent.name for p in paths.data_folder("images").glob("*/image.yaml"))


def folder(name: str) -> Path:
    """The folder of an image. Raises UsageError that names the nearest one."""
    known = names()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        raise UsageError(f"no image is named {name!r}", hint=hint)
    return paths.data_folder("images") / name


def load(name: str) -> ImageSpec:
    """What an image's image.yaml says. Raises UsageError for an unknown name, KitError for a damaged file."""
    path = folder(name) / "image.yaml"
    try:
        return ImageSpec.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (ValidationError, yaml.YAMLError) as error:
        raise KitError(f"{path}: {error}") from error
