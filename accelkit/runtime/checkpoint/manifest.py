"""The manifest of a checkpoint: what it consists of, and by what each file is known again. Without one there is no checkpoint."""

import hashlib
import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from accelkit.runtime.checkpoint.digest import Digests
from accelkit.runtime.errors import CheckpointError

NAME: Final = "checkpoint.json"
FORMAT: Final = 1


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a checkpoint consists of."""

    world_size: int
    strategy: str
    iteration: int
    """Which save of the run this was, from 0."""
    counts: dict[str, int]
    """How many models, optimizers, schedulers, loaders, scalers and registered objects there were."""
    files: dict[str, Digests] = field(default_factory=dict)
    """By path within the checkpoint."""
    format: int = FORMAT
    torch: str = torch.__version__
    saved: str = ""
    """When, in UTC."""

    def write(self, folder: Path) -> None:
        """Write the manifest and bring it to the disk."""
        body = asdict(self) | {"saved": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        body["files"] = dict(sorted(body["files"].items()))
        text = json.dumps({**body, "sha256": _digest(body)}, indent=1)
        with (folder / NAME).open("w", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())


def read(path: Path) -> Manifest:
    """A manifest from its file. Raises CheckpointError when it is damaged or of a later format."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        digest = body.pop("sha256")
        files = {name: Digests(size=e["size"], crc32=tuple(e["crc32"])) for name, e in body["files"].items()}
        intact = digest == _digest(body)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: is damaged ({error})") from error
    if body.get("format") != FORMAT:
        raise CheckpointError(
            f"{path}: is of format {body.get('format')}, and this version reads format {FORMAT}",
            hint="use the version of accelkit that wrote it",
        )
    if not intact:
        raise CheckpointError(f"{path}: is damaged: it is not what was saved")
    return Manifest(**{**body, "files": files})


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
