"""What the user wants in an image beside torch: requirements files, or a project with pyproject.toml or uv.lock."""

import hashlib
import re
from pathlib import Path
from typing import Final

from accelkit.contract.data import data
from accelkit.host.errors import UsageError
from accelkit.host.image import pyproject, toml, uvlock
from accelkit.host.image.names import name_of, without_logins
from accelkit.host.image.pyproject import Project

CONDA: Final = ("environment.yml", "environment.yaml", "conda-lock.yml", "meta.yaml")
_OTHER_FILES: Final = (
    "-r", "-c", "-e", "--requirement", "--constraint", "--editable", ".", "/", "file:",
)  # fmt: skip
_PLACES: Final = re.compile(r"\s*(--index-url|--extra-index-url|--find-links|--no-index|-i|-f)(?:[\s=]+(\S+))?")
"""Lines that say where packages are looked for."""
_HASH: Final = re.compile(r"--hash[= ]\s*([a-z0-9]+):([0-9A-Fa-f]+)")
_COMMENT: Final = re.compile(r"(^|\s)#.*")


@data
class Requirements:
    """A file of requirements."""

    path: Path
    kind: str
    """requirements.txt, pyproject.toml or uv.lock."""

    @property
    def digest(self) -> str:
        """Of its content."""
        return f"sha256:{hashlib.sha256(self.path.read_bytes()).hexdigest()}"

    @property
    def text(self) -> str:
        """Its content. Raises UsageError for one that is not UTF-8."""
        return _read(self.path)

    @property
    def project(self) -> Project | None:
        """What a pyproject.toml says, also the one that a uv.lock was made from. Raises UsageError for a damaged one."""
        path = self.path.with_name(pyproject.FILE)
        is_there = self.kind == pyproject.FILE or (self.kind == "uv.lock" and path.is_file())
        return pyproject.read(_read(path), path) if is_there else None

    @property
    def requires_python(self) -> str:
        """Versions of Python that it is for, as it says; empty: all."""
        if self.kind == "uv.lock":
            return str(toml.parse(self.text, self.path).get("requires-python", ""))
        return self.project.requires_python if self.project else ""


def gather(files: list[str], project: str | None, folder: Path) -> tuple[Requirements, ...]:
    """The files that `--requirements` and `--project` name, relative to `folder`.

    Raises UsageError for what is not there, for Conda's files, and for requirements that point to files which the build does not see.
    """
    found = []
    for name in files:
        path = (folder / Path(name).expanduser()).resolve()
        if path.is_dir():
            raise UsageError(f"--requirements {name}: a folder", hint=f"name a file in it, or --project {name}")
        if not path.is_file():
            raise UsageError(f"--requirements {without_logins(name)}: not there")
        _refuse_conda(path, f"--requirements {name}")
        kind = path.name if path.name in (pyproject.FILE, "uv.lock") else "requirements.txt"
        if kind == "requirements.txt":
            _check_lines(path)
        found.append(_checked(Requirements(path=path, kind=kind)))
    return tuple(found) if project is None else (*found, _of_project(project, folder))


def _checked(item: Requirements) -> Requirements:
    """Read once, so that what is damaged is told before anything is done."""
    _names(item)
    _hashes_of(item)
    return item


def places(item: Requirements) -> list[tuple[int, str, str]]:
    """Line, option and address of each line in a requirements file that says where packages are looked for."""
    lines = item.text.splitlines() if item.kind == "requirements.txt" else []
    return [(number, m[1], m[2] or "") for number, line in enumerate(lines, 1) if (m := _PLACES.match(line))]


def without_places(item: Requirements) -> str:
    """The text of a requirements file less those lines."""
    return "".join(line for line in item.text.splitlines(keepends=True) if not _PLACES.match(line))


def mentions(requirements: tuple[Requirements, ...], name: str) -> bool:
    """Whether some file asks for the package `name`."""
    return any(name in _names(item) for item in requirements)


def hashes(requirements: tuple[Requirements, ...]) -> dict[str, list[tuple[Path, frozenset[str]]]]:
    """Package -> each file that says which files it may be, with their sha256.

    Raises UsageError for hashes of another kind alone, which nothing could be compared with.
    """
    found: dict[str, list[tuple[Path, frozenset[str]]]] = {}
    for item in requirements:
        for name, allowed in _hashes_of(item).items():
            found.setdefault(name, []).append((item.path, allowed))
    return found


def _hashes_of(item: Requirements) -> dict[str, frozenset[str]]:
    if item.kind == "uv.lock":
        return uvlock.hashes(toml.parse(item.text, item.path))
    found: dict[str, frozenset[str]] = {}
    for line in _lines(item.text) if item.kind == "requirements.txt" else ():
        name, given = name_of(line), _HASH.findall(line)
        if name is None or not given:
            continue
        allowed = frozenset(digest.lower() for kind, digest in given if kind == "sha256")
        if not allowed:
            raise UsageError(
                f"{item.path}: {name}: a hash of kind {given[0][0]} alone",
                hint="give its sha256, which kit compares",
            )
        found[name] = found.get(name, frozenset()) | allowed
    return found


def _names(item: Requirements) -> set[str]:
    """Packages that a file asks for; those of a uv.lock with all that they need."""
    if item.kind == "requirements.txt":
        return {name for line in _lines(item.text) if (name := name_of(line))}
    if item.kind == "uv.lock":
        return uvlock.names(toml.parse(item.text, item.path))
    return {name for line in pyproject.read(item.text, item.path).dependencies if (name := name_of(line))}


def _lines(text: str) -> list[str]:
    """Lines of a requirements file: those that go on after a backslash are one, without comments."""
    return [_COMMENT.sub("", line) for line in re.sub(r"\\\r?\n", " ", text).splitlines()]


def _of_project(project: str, folder: Path) -> Requirements:
    top = (folder / Path(project).expanduser()).resolve()
    places = [top] if top.is_file() else [top / name for name in ("uv.lock", "pyproject.toml", "requirements.txt")]
    for path in places:
        if path.is_file():
            return gather([str(path)], None, folder)[0]
    for name in CONDA:
        _refuse_conda(top / name, f"--project {project}")
    raise UsageError(f"--project {project}: neither uv.lock nor pyproject.toml nor requirements.txt is there")


def _refuse_conda(path: Path, flag: str) -> None:
    if path.name in CONDA and path.is_file():
        raise UsageError(
            f"{flag}: {path.name} is Conda's, whose packages are not wheels and bring a torch of their own",
            hint="give a pyproject.toml, a uv.lock or a requirements.txt",
        )


def _read(path: Path) -> str:
    content = path.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"{path}:{line}: not UTF-8 (byte {error.object[error.start]:#04x})",
            hint=f"iconv -f LATIN1 -t UTF-8 {path.name} > new.txt",
        ) from error


def _check_lines(path: Path) -> None:
    for number, line in enumerate(_read(path).splitlines(), 1):
        if line.strip().startswith(_OTHER_FILES):
            raise UsageError(
                f"{path}:{number}: {without_logins(line.strip())}: a requirements file is installed by itself, without the files beside it",
                hint="give each file with a --requirements of its own; code of yours is mounted, not installed",
            )
