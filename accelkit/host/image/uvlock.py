"""What a project's uv.lock gives an image: all that it exports, but for torch and what torch's build brings. Pure."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from accelkit.host.image.names import name_of, normalized

TORCH: Final = "torch"
SHIPPED_FOR_TORCH: Final = ("torchvision", "torchaudio")
"""They have to be of torch's own build, and therefore from its own index."""
_OF_A_BUILD: Final = re.compile(r"triton|pytorch-triton.*|nvidia-.+|cuda-.+")
"""Of what torch depends on, that which another build of torch has in another version, or not at all."""
_LOCAL: Final = ("virtual", "editable", "directory")
"""Sources of packages that are folders: the project itself and the members of its workspace."""


def torch_of(exported: str) -> str | None:
    """Version of torch in exported requirements, without its local part; None where there is none."""
    found = re.search(r"(?m)^torch==([0-9.]+)", exported)
    return found[1] if found else None


def without_torch(exported: str, lock: Mapping[str, Any]) -> str:
    """The requirements that uv exported from `lock`, less torch, what its build alone brings, and paths (:func:`own` has them).

    Of what torch brings, that which the project asks for by its own name stays in whatever version torch takes; torchvision and
    torchaudio stay in theirs, of any build.
    """
    direct, below = _direct(lock), _below_torch(lock)
    kept = [
        line
        for line in exported.splitlines()
        if (n := name_of(line)) not in (None, TORCH) and (n not in below or n in direct)
    ]
    return "".join(_of_any_build(line, below) + "\n" for line in kept)


def _of_any_build(line: str, below: set[str]) -> str:
    name = name_of(line)
    if name in below:
        return re.sub(r"^([^\s=;]+)\s*==\s*[^\s;]+", r"\1", line)
    return re.sub(r"^([^\s=;]+==[^\s;+]+)\+[^\s;]+", r"\1", line) if name in SHIPPED_FOR_TORCH else line


def own(lock: Mapping[str, Any]) -> list[str]:
    """Packages that the project needs and that lie in folders or files beside it: members of its workspace, paths."""
    needed, roots = names(lock), _roots(lock)
    found = {normalized(p["name"]) for p in _packages(lock) if _is_local(p) or "path" in p.get("source", {})}
    return sorted(found & needed - set(roots))


def hashes(lock: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """Package -> sha256 of the wheels that are locked, but for what is left to the image's torch and what has no wheels."""
    left = {TORCH, *SHIPPED_FOR_TORCH, *_below_torch(lock)}
    found: dict[str, frozenset[str]] = {}
    for package in _packages(lock):
        name = normalized(package["name"])
        wheels = {str(wheel.get("hash", "")) for wheel in package.get("wheels", ()) if name not in left}
        known = {digest.removeprefix("sha256:") for digest in wheels if digest.startswith("sha256:")}
        if known:
            found[name] = found.get(name, frozenset()) | known
    return found


def _direct(lock: Mapping[str, Any]) -> set[str]:
    graph = _graph(lock)
    return {name for root in _roots(lock) for name in graph.get(root, ())}


def _below_torch(lock: Mapping[str, Any]) -> set[str]:
    """What torch's build brings."""
    return {name for name in _reachable(_graph(lock), [TORCH]) if _OF_A_BUILD.fullmatch(name)}


def names(lock: Mapping[str, Any]) -> set[str]:
    """Names of all packages that the project of this lock needs."""
    return _reachable(_graph(lock), _roots(lock))


def _packages(lock: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [package for package in lock.get("package", ()) if isinstance(package, dict) and "name" in package]


def _graph(lock: Mapping[str, Any]) -> dict[str, set[str]]:
    """Package -> what it depends on. Extras count where the lock holds them, but for those of the project, which are not exported."""
    found: dict[str, set[str]] = {}
    for package in _packages(lock):
        groups = [package.get("dependencies", ())]
        if not _is_local(package):
            groups += package.get("optional-dependencies", {}).values()
        wanted = {normalized(one["name"]) for group in groups for one in group}
        found.setdefault(normalized(package["name"]), set()).update(wanted)
    return found


def _roots(lock: Mapping[str, Any]) -> list[str]:
    """The project, or where it is but a workspace, its members."""
    local = [package for package in _packages(lock) if _is_local(package)]
    top = [package for package in local if "." in (package["source"].get(kind) for kind in _LOCAL)]
    return [normalized(package["name"]) for package in top or local]


def _is_local(package: Mapping[str, Any]) -> bool:
    return any(kind in package.get("source", {}) for kind in _LOCAL)


def _reachable(graph: Mapping[str, set[str]], start: Iterable[str]) -> set[str]:
    """Everything below `start`, without what is only in `start`."""
    found: set[str] = set()
    waiting = list(start)
    while waiting:
        new = graph.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found
