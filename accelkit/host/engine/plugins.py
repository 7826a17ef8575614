"""Where the docker command keeps its plug-ins, so that one can be called without asking each of them who it is."""

import json
import os
from pathlib import Path
from typing import Final

_SYSTEM: Final = (
    "/usr/local/lib/docker/cli-plugins",
    "/usr/local/libexec/docker/cli-plugins",
    "/usr/lib/docker/cli-plugins",
    "/usr/libexec/docker/cli-plugins",
)


def compose() -> list[str]:
    """The words that start Compose: its plug-in's own file, which saves the docker command's start; else `docker compose`.

    Looks where the docker command does, in its order: `cliPluginsExtraDirs` of its config, the config's folder, the system's folders.
    """
    config = Path(os.environ.get("DOCKER_CONFIG") or Path("~/.docker").expanduser())
    for folder in (*_extra_folders(config), config / "cli-plugins", *map(Path, _SYSTEM)):
        plugin = folder / "docker-compose"
        if os.access(plugin, os.X_OK) and plugin.is_file():
            return [str(plugin)]
    return ["docker", "compose"]


def _extra_folders(config: Path) -> list[Path]:
    try:
        told = json.loads((config / "config.json").read_text(encoding="utf-8")).get("cliPluginsExtraDirs", [])
        return [Path(folder) for folder in told]
    except (OSError, ValueError, AttributeError, TypeError):
        return []
