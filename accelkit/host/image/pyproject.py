"""What a pyproject.toml asks for: its dependencies, and what of its [tool.uv] changes how they resolve. Pure.

The file is read here and not by uv, which would follow it to other indices, folders and repositories: an image is made of wheels from the
indices and the folder that were named to kit, and torch is the image's own.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from accelkit.contract.data import data
from accelkit.host.errors import UsageError
from accelkit.host.image import toml
from accelkit.host.image.names import name_of, normalized

FILE: Final = "pyproject.toml"
_INDICES: Final = ("index", "index-url", "extra-index-url", "find-links", "no-index")
WITHOUT_EFFECT: Final = (
    "dependency-metadata", "exclude-newer", "exclude-newer-package", "index-strategy", "prerelease", "resolution",
)  # fmt: skip
"""Settings of uv that would lead to other versions, and that only uv's own lock can tell of."""
_CLAUSE: Final = re.compile(r"\s*(~=|==|!=|<=|>=|<|>)\s*([0-9]+(?:\.[0-9]+)*)(\.\*)?\s*")
_PATCHES: Final = 50
"""More releases than any version of Python has."""


@data
class Project:
    """What is taken from the file."""

    path: Path
    name: str
    """As it is compared; empty where it has none."""
    dependencies: tuple[str, ...]
    requires_python: str
    constraints: tuple[str, ...]
    overrides: tuple[str, ...]
    excludes: tuple[str, ...]
    sources: Mapping[str, str]
    """Package -> what kind of place it is to come from: index, path, git, url, workspace."""
    indices: tuple[str, ...]
    """Settings that name places of packages."""
    without_effect: tuple[str, ...]


def read(text: str, path: Path) -> Project:
    """The file of this text. Raises UsageError that names what is not as it should be."""
    document = toml.parse(text, path)
    project, uv = _table(document, "project", path), _table(_table(document, "tool", path), "uv", path)
    if "dependencies" in _texts(project, "dynamic", path):
        raise UsageError(f"{path}: project.dependencies is dynamic: it takes a build to know them", hint=_hint(path))
    if "project" not in document and _table(document, "tool", path).keys() - {"uv"}:
        raise UsageError(f"{path}: no [project] in it, whose dependencies are what kit installs", hint=_hint(path))
    dependencies = _texts(project, "dependencies", path)
    own = normalized(str(project.get("name", "")))
    for line in dependencies:
        if own and name_of(line) == own:
            raise UsageError(f"{path}: project.dependencies: {line} is the project itself", hint=_hint(path))
    return Project(
        path=path,
        name=own,
        dependencies=dependencies,
        requires_python=str(project.get("requires-python", "")),
        constraints=_texts(uv, "constraint-dependencies", path),
        overrides=_texts(uv, "override-dependencies", path),
        excludes=_texts(uv, "exclude-dependencies", path),
        sources={normalized(name): _kind(source) for name, source in _table(uv, "sources", path).items()},
        indices=tuple(f"tool.uv.{key}" for key in _INDICES if _names_places(uv.get(key))),
        without_effect=tuple(f"tool.uv.{key}" for key in WITHOUT_EFFECT if key in uv),
    )


def check_places(project: Project, own: tuple[str, ...], wheels: Path | None, index_url: str | None) -> None:
    """Raise UsageError for packages that are to come from places which kit was not told of. `own`: packages that are the image's matter."""
    if project.indices and index_url is None and wheels is None:
        raise UsageError(
            f"{project.path}: {', '.join(project.indices)}: kit asks no index but the one that is named to it",
            hint="--index-url URL names an index that has all packages, --wheels DIR a folder of wheels",
        )
    for name in dict.fromkeys(name_of(line) or "" for line in project.dependencies):
        kind = project.sources.get(name)
        if kind is None or name in own or has_wheel(wheels, name) or (kind == "index" and index_url is not None):
            continue
        index = ", or name an index that has it with --index-url URL" if kind == "index" else ""
        raise UsageError(
            f"{project.path}: tool.uv.sources: {name} comes from a place of its own ({kind}), which kit does not follow",
            hint=f"put its wheel into a folder, and name that with --wheels DIR{index}",
        )


def has_wheel(wheels: Path | None, name: str) -> bool:
    """Whether a folder holds a wheel of a package, named as it is compared."""
    return wheels is not None and any(normalized(p.name.partition("-")[0]) == name for p in wheels.glob("*.whl"))


def allows(specifier: str, python: str) -> bool:
    """Whether some release of a version of Python, named by two numbers, is allowed by a `requires-python`."""
    clauses = [_CLAUSE.fullmatch(clause) for clause in specifier.split(",") if clause.strip()]
    release = tuple(int(part) for part in python.split("."))
    known = [clause for clause in clauses if clause]
    return any(all(_holds((*release, patch), *clause.groups()) for clause in known) for patch in range(_PATCHES))


def _holds(version: tuple[int, ...], operator: str, text: str, star: str | None) -> bool:
    wanted = tuple(int(part) for part in text.split("."))
    padded = (*wanted, 0, 0, 0)[: len(version)]
    if operator in ("==", "!="):
        same = version[: len(wanted)] == wanted if star else version == padded
        return same == (operator == "==")
    if operator == "~=":
        return version >= padded and version[: len(wanted) - 1] == wanted[:-1]
    return {"<": version < padded, "<=": version <= padded, ">": version > padded, ">=": version >= padded}[operator]


def _table(document: Mapping[str, Any], key: str, path: Path) -> dict[str, Any]:
    found = document.get(key, {})
    if not isinstance(found, dict):
        raise UsageError(f"{path}: {key} is not a table")
    return found


def _texts(table: Mapping[str, Any], key: str, path: Path) -> tuple[str, ...]:
    found = table.get(key, [])
    if not isinstance(found, list) or not all(isinstance(line, str) for line in found):
        raise UsageError(f"{path}: {key} is not a list of texts")
    return tuple(found)


def _kind(source: Any) -> str:
    """What kind of place a source is; of several, each for an environment of its own, the first."""
    one = source[0] if isinstance(source, list) and source else source
    kinds = ("index", "workspace", "path", "git", "url")
    return next((kind for kind in kinds if isinstance(one, dict) and kind in one), "unknown")


def _names_places(value: Any) -> bool:
    """Whether a setting names places where any package is looked for; an explicit index is asked for its own packages alone."""
    rows = value if isinstance(value, list) else [value]
    return any(row and not (isinstance(row, dict) and row.get("explicit")) for row in rows)


def _hint(path: Path) -> str:
    return f"uv lock --project {path.parent} writes a uv.lock, which kit takes; or write a requirements.txt"
