"""uv, which resolves: finding it, and asking it whether a project's uv.lock is still of its pyproject.toml."""

import sys
from pathlib import Path
from typing import Final

from accelkit.host import process, render
from accelkit.host.errors import KitError, UsageError
from accelkit.host.image import pyproject, toml
from accelkit.host.image.names import normalized, without_logins

LOCK: Final = "uv.lock"
QUIET: Final = {"UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1"}
"""Variables of every call."""
PLACES: Final = (
    "UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_NO_INDEX", "UV_INDEX_STRATEGY",
    "UV_CONFIG_FILE", "UV_CONSTRAINT", "UV_OVERRIDE", "UV_EXCLUDE", "UV_EXCLUDE_NEWER", "UV_RESOLUTION", "UV_PRERELEASE",
    "UV_TORCH_BACKEND", "UV_NO_SOURCES",
)  # fmt: skip
"""Variables by which packages would resolve to others than `--index-url` and `--wheels` have, from where they are fetched."""
_STALE: Final = 1
"""What `uv lock --check` exits with where the lock is another than the project needs; 2: it could not find out."""


def find() -> str:
    """The uv of this installation, else the one on PATH. Raises KitError."""
    beside = Path(sys.executable).parent / "uv"
    found = str(beside) if beside.is_file() else process.find("uv")
    if found is None:
        raise KitError("uv is not installed, which resolves packages", hint="pip install uv")
    return found


def check_lock(path: Path, ca: Path | None) -> None:
    """Raise UsageError for a uv.lock that is older than the pyproject.toml beside it: it lacks what was added since.

    The indices are those of the project, since the lock names them; a lock that fits is told without asking any.
    """
    if not (path.parent / pyproject.FILE).is_file():
        return
    env = {**QUIET, "SSL_CERT_FILE": str(ca)} if ca else QUIET
    done = process.run([find(), "lock", "--check", "--quiet", "--project", str(path.parent)], env=env)
    if done.code == _STALE:
        raise UsageError(
            f"{path}: not what the {pyproject.FILE} beside it needs now",
            hint=f"uv lock --project {path.parent}",
        )
    if done.code:
        said = without_logins(done.stderr).strip()
        render.warn(f"{path}: whether it still fits the {pyproject.FILE} beside it could not be found out:\n{said}")


def lock_above(project: pyproject.Project) -> Path | None:
    """The uv.lock of the workspace that a project is a member of; None where there is none."""
    for path in (folder / LOCK for folder in project.path.parent.parents):
        if path.is_file():
            manifest = toml.parse(path.read_text(encoding="utf-8", errors="replace"), path).get("manifest", {})
            return path if project.name in map(normalized, manifest.get("members", ())) else None
    return None
