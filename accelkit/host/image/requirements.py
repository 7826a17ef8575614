"""What the user wants in an image beside torch: requirements files, or a project with pyproject.toml or uv.lock."""

import hashlib
import re
from pathlib import Path
from typing import Final

from accelkit.contract.data import data
from accelkit.host.errors import UsageError

CONDA: Final = ("environment.yml", "environment.yaml", "conda-lock.yml", "meta.yaml")
_OTHER_FILES: Final = (
    "-r", "-c", "-e", "--requirement", "--constraint", "--editable", ".", "/", "file:",
)  # fmt: skip
_OF_TORCH: Final = re.compile(r"(torch|triton|nvidia-|cuda-|pytorch-triton)", re.IGNORECASE)


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


def gather(files: list[str], project: str | None, folder: Path) -> tuple[Requirements, ...]:
    """The files that `--requirements` and `--project` name, relative to `folder`.

    Raises UsageError for what is not there, for Conda's files, and for requirements that point to files which the build does not see.
    """
    found = []
    for name in files:
        path = (folder / Path(name).expanduser()).resolve()
        if not path.is_file():
            raise UsageError(f"--requirements {name}: not there")
        _refuse_conda(path, f"--requirements {name}")
        kind = path.name if path.name in ("pyproject.toml", "uv.lock") else "requirements.txt"
        if kind == "requirements.txt":
            _check_lines(path)
        found.append(Requirements(path=path, kind=kind))
    return tuple(found) if project is None else (*found, _of_project(project, folder))


def mentions(requirements: tuple[Requirements, ...], name: str) -> bool:
    """Whether some file asks for the package `name`."""
    pattern = re.compile(rf"(?m)^[\s\"']*{re.escape(name)}\s*(?=$|[\[<>=!~;,\"' ])", re.IGNORECASE)
    return any(r.kind != "uv.lock" and pattern.search(r.text) for r in requirements)


def without_torch(exported: str) -> str:
    """Requirements that uv exported from a lock, less torch and what comes with it: the image decides about those."""
    return "".join(line + "\n" for line in exported.splitlines() if not _OF_TORCH.match(line))


def torch_of(exported: str) -> str | None:
    """Version of torch in exported requirements, without its local part; None where there is none."""
    found = re.search(r"(?m)^torch==([0-9.]+)", exported)
    return found[1] if found else None


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
                f"{path}:{number}: {line.strip()}: a requirements file is installed by itself, without the files beside it",
                hint="give each file with a --requirements of its own; code of yours is mounted, not installed",
            )
