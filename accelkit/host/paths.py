"""Where things lie on the host: the user's folders, the project's `.accelkit`, and the data files shipped with accelkit."""

import os
from pathlib import Path

from accelkit.host.errors import KitError


def config_home() -> Path:
    """Accelkit's config folder: `$XDG_CONFIG_HOME/accelkit`, else `~/.config/accelkit`."""
    return _xdg("XDG_CONFIG_HOME", ".config")


def cache_home() -> Path:
    """Accelkit's cache folder (staged runtimes, build contexts): `$XDG_CACHE_HOME/accelkit`, else `~/.cache/accelkit`."""
    return _xdg("XDG_CACHE_HOME", ".cache")


def user_config() -> Path:
    """The user's default config file."""
    return config_home() / "default_config.yaml"


def project_state(workdir: Path) -> Path:
    """`.accelkit` of a project: records, logs, outputs. Ignores itself in git; made when first needed by the store."""
    return workdir / ".accelkit"


def project_runs(workdir: Path) -> Path:
    """Where the folders of a project's runs lie."""
    return project_state(workdir) / "runs"


def package_root() -> Path:
    """The folder of the installed `accelkit` package, also on a rank, whose `accelkit` is a staged copy of a part of it."""
    return Path(__file__).resolve().parent.parent


def data_folder(name: str) -> Path:
    """A folder of data files: `images` or `compose`.

    In an installed wheel they lie inside the package (`_data/`), in a checkout at its top. Raises FileNotFoundError with both places.
    """
    places = (package_root() / "_data" / name, package_root().parent / name)
    for place in places:
        if place.is_dir():
            return place
    raise FileNotFoundError(
        f"accelkit's {name}/ folder is neither at {places[0]} nor at {places[1]}: reinstall accelkit"
    )


def _xdg(variable: str, fallback: str) -> Path:
    """A relative path in such a variable counts for nothing, as the XDG specification has it."""
    base = os.environ.get(variable, "")
    try:
        return (Path(base) if os.path.isabs(base) else Path.home() / fallback) / "accelkit"
    except RuntimeError as error:
        raise KitError("you have no home folder", hint=f"set HOME, or {variable} to a folder of yours") from error
