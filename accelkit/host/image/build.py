"""Building an image: a pure plan (the buildx command, a digest of everything that goes in), then its execution.

Nothing of the CA, the wheels, the index or a proxy reaches a layer: they are build secrets, build contexts, and arguments that BuildKit
keeps out of the history.
"""

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from accelkit.contract import names
from accelkit.host import paths, process
from accelkit.host.config.model import BuildConfig
from accelkit.host.engine import client as engine
from accelkit.host.errors import BuildError, ImageNotFound, UsageError
from accelkit.host.image import catalogue
from accelkit.host.image.catalogue import ImageSpec

if TYPE_CHECKING:
    from docker import DockerClient

_PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
_TAIL: Final = 15


@dataclass(frozen=True, kw_only=True)
class BuildPlan:
    """A build, decided."""

    image: ImageSpec
    context: Path
    base: str
    tag: str
    digest: str
    """Of the Dockerfile and its context, the base's ID, versions, requirements and where packages come from. The same digest needs no
    second build."""
    argv: tuple[str, ...]
    """The buildx command, less the two contexts that are made when it runs."""
    requirements: tuple[Path, ...]
    index_url: str | None
    wheels: Path | None


@dataclass(frozen=True, kw_only=True)
class Built:
    """An image that is there."""

    tag: str
    id: str
    size: int
    """Bytes."""
    seconds: float
    fresh: bool
    """False when nothing had changed."""


def plan(name: str, config: BuildConfig, *, tag: str | None = None, no_cache: bool = False) -> BuildPlan:
    """Plan the build of image `name`. Raises UsageError for an unknown image and for paths that are not there."""
    image = catalogue.load(name)
    context = catalogue.folder(name)
    ca = _existing("--ca", config.ca)
    wheels = _existing("--wheels", config.wheels)
    requirements = tuple(p for p in (_existing("--requirements", r) for r in config.requirements) if p)
    base = config.base or image.base
    for path in requirements:
        _check_requirements(path)
    digest = _digest(image, context, base, requirements, f"{config.index_url} {_listing(wheels)}")
    wanted = tag or engine.image_tag(name)
    argv = [
        "docker",
        "buildx",
        "build",
        "--progress=plain",
        "--load",
        f"--tag={wanted}",
        f"--file={context / 'Dockerfile'}",
    ]
    argv += [f"--build-arg={k}={v}" for k, v in {
        "BASE": base, "TORCH": image.torch, "TORCH_INDEX": image.torch_index, "PACKAGES": " ".join(image.packages)}.items()]  # fmt: skip
    argv += [f"--build-arg={p}" for p in _PROXIES if p in os.environ]
    argv += [f"--label={names.LABEL_IMAGE}={name}", f"--label={names.LABEL_BUILD}={digest}", "--provenance=false"]
    argv += [f"--secret=id=ca,src={ca}"] if ca else []
    argv += [f"--network={config.network}"] if config.network else []
    argv += ["--no-cache"] if no_cache else []
    return BuildPlan(
        image=image, context=context, base=base, tag=wanted, digest=digest, argv=tuple(argv),
        requirements=requirements, index_url=config.index_url, wheels=wheels,
    )  # fmt: skip


def build(decided: BuildPlan, show: Callable[[str], None], *, force: bool = False) -> Built:
    """Build, unless the tag already is this very build. `show` gets each line of BuildKit's progress. Raises BuildError."""
    started = time.monotonic()
    client = engine.connect()
    before = None if force else _find(decided, client)
    if before is None:
        _run(decided, show)
    found = before or _find(decided, client)
    if found is None:
        raise BuildError(f"{decided.tag}: built, but the engine has no such image", hint="docker images")
    return Built(tag=decided.tag, id=found[0], size=found[1], seconds=time.monotonic() - started, fresh=before is None)


def command(decided: BuildPlan) -> str:
    """The command for `--print`; the contexts that kit makes are shown by what is in them."""
    more = [
        f"--build-context=wheels={decided.wheels or 'EMPTY_FOLDER'}",
        "--build-context=extra=FOLDER_OF_REQUIREMENTS",
    ]
    index = ["--secret=id=index,src=FILE_WITH_INDEX_URL"] if decided.index_url else []
    return " \\\n  ".join([" ".join(decided.argv[:3]), *decided.argv[3:], *more, *index, str(decided.context)])


def _find(decided: BuildPlan, client: "DockerClient") -> tuple[str, int] | None:
    """ID and size of the tag when it is this build and its base is the one here today."""
    with engine.engine_errors("looking for the image"):
        try:
            found = engine.find_image(client, decided.tag)
        except ImageNotFound:
            return None
        image = client.images.get(found.id)
        if image.labels.get(names.LABEL_BUILD) != decided.digest:
            return None
        return found.id, int(image.attrs.get("Size", 0))


def _run(decided: BuildPlan, show: Callable[[str], None]) -> None:
    log = _log_file(decided.image.name)
    lines: list[str] = []
    with _contexts(decided) as extra:
        child = process.Child([*decided.argv, *extra, str(decided.context)], stderr=process.TO_STDOUT)
        try:
            with log.open("w", encoding="utf-8") as file:
                for line in child.lines():
                    file.write(line + "\n")
                    lines.append(line)
                    show(line)
            code = child.wait()
        finally:
            child.kill_group()
    if code:
        raise BuildError(f"{decided.tag}: {failure(lines)}", hint=f"the whole log: {log}")


def failure(lines: list[str]) -> str:
    """The step that failed and its last lines, out of BuildKit's plain progress."""
    failed = next((line for line in reversed(lines) if line.startswith("#") and " ERROR: " in line), "")
    number = failed.partition(" ")[0]
    own = [line for line in lines if number and line.startswith(f"{number} ")]
    step = next((line.partition(" ")[2] for line in own if line.partition(" ")[2].startswith("[")), "")
    said = own[1:] if step else [line for line in lines if line.strip()]
    words = [line for line in said if line != failed][-_TAIL:]
    reason = failed or next((line for line in reversed(lines) if line.startswith("ERROR: ")), "")
    shown = [*([f"step: {step}"] if step else []), *words, *([reason] if reason else [])]
    return "\n  ".join(["the build failed", *shown])


@contextmanager
def _contexts(decided: BuildPlan) -> Iterator[list[str]]:
    """Options that name the wheels, the numbered requirements, and the index's secret; the temporary folder goes afterwards."""
    with tempfile.TemporaryDirectory(prefix="accelkit-build-") as name:
        top = Path(name)
        empty, extra = top / "empty", top / "extra"
        empty.mkdir()
        extra.mkdir()
        for number, path in enumerate(decided.requirements):
            (extra / f"{number:02}.txt").write_bytes(path.read_bytes())
        options = [f"--build-context=wheels={decided.wheels or empty}", f"--build-context=extra={extra}"]
        if decided.index_url:
            (top / "index").write_text(decided.index_url)
            options.append(f"--secret=id=index,src={top / 'index'}")
        yield options


def _check_requirements(path: Path) -> None:
    """Raise UsageError for lines that point to other files, which the build does not see."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip().startswith(
            ("-r", "-c", "-e", "--requirement", "--constraint", "--editable", ".", "/", "file:")
        ):
            raise UsageError(
                f"{path}:{number}: {line.strip()}: a requirements file is installed by itself, without the files beside it",
                hint="give each file with a --requirements of its own; code of yours is mounted, not installed",
            )


def _listing(wheels: Path | None) -> str:
    """Names and sizes of the wheels: enough to see that there are others now."""
    found = sorted(wheels.glob("*.whl")) if wheels else []
    return " ".join(f"{path.name}:{path.stat().st_size}" for path in found)


def _digest(image: ImageSpec, context: Path, base: str, requirements: tuple[Path, ...], sources: str) -> str:
    total = hashlib.sha256()
    files = [*sorted(p for p in context.rglob("*") if p.is_file()), *requirements]
    for path in files:
        total.update(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    total.update(f"{image.model_dump_json()} {base} {_base_id(base)} {sources}".encode())
    return f"sha256:{total.hexdigest()}"


def _base_id(base: str) -> str:
    """ID of the base here; empty when it is still to be pulled."""
    client = engine.connect()
    with engine.engine_errors("looking for the base image"):
        try:
            return engine.find_image(client, base).id
        except ImageNotFound:
            return ""


def _existing(flag: str, text: str | None) -> Path | None:
    if text is None:
        return None
    path = Path(text).expanduser()
    if not path.exists():
        raise UsageError(f"{flag} {text}: not there")
    return path.resolve()


def _log_file(name: str) -> Path:
    folder = paths.cache_home() / "builds"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
