"""Where the docker command keeps its plug-ins, so that one can be called without asking each of them who it is."""

import os
from pathlib import Path
from typing import Final

from accelkit.host.engine import command

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
    for folder in (*_extra_folders(), command.folder() / "cli-plugins", *map(Path, _SYSTEM)):
        plugin = folder / "docker-compose"
        if os.access(plugin, os.X_OK) and plugin.is_file():
            return [str(plugin)]
    return ["docker", "compose"]


def _extra_folders() -> list[Path]:
    told = command.settings().get("cliPluginsExtraDirs")
    return [Path(folder) for folder in told if isinstance(folder, str)] if isinstance(told, list) else []
