"""The docker command's own settings, which kit goes by as well. Nothing of the SDK here: a run asks before that is imported."""

import json
import os
from pathlib import Path
from typing import Any


def folder() -> Path:
    """Where they lie: `$DOCKER_CONFIG`, else `~/.docker`."""
    return Path(os.environ.get("DOCKER_CONFIG") or Path("~/.docker").expanduser())


def settings() -> dict[str, Any]:
    """Its config.json; nothing where there is none, or a damaged one, which the docker command itself tells of."""
    return read_json(folder() / "config.json")


def read_json(path: Path) -> dict[str, Any]:
    """An object in a file; nothing where there is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
