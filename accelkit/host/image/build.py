"""Building an image: a plan (what goes in, a digest of it, the buildx command), then its execution.

Nothing of the CA, the wheels, the indices or a proxy reaches a layer: they are build secrets, build contexts, and arguments that BuildKit
keeps out of the history, and only stages that do not stay see them.
"""

import os
import time
from collections.abc import Callable
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from accelkit.contract import names
from accelkit.contract.data import data
from accelkit.host import paths, process
from accelkit.host.engine import client as engine
from accelkit.host.engine import images
from accelkit.host.errors import BuildError, ImageNotFound
from accelkit.host.image import catalogue, contexts, kept, progress
from accelkit.host.image.inputs import Inputs
from accelkit.host.image.lockfile import LockedImage
from accelkit.host.image.output import Output, check_tag, push
from accelkit.host.image.resolve import resolve

if TYPE_CHECKING:
    from docker import DockerClient


@data
class Options:
    """How to build, which changes nothing of what is in the image."""

    tag: str | None = None
    no_cache: bool = False
    reproducible: bool = False
    """The same bytes whenever it is built: times are rewritten."""
    output: Output = field(default_factory=Output)
    runtime: Path | None = None
    """A staged runtime to bake in."""
    runtime_digest: str = ""
    bundle: Path | None = None
    """A bundle whose recipe is built, and whose folders take the place of the stages that fetch."""


@data
class BuildPlan:
    """A build, decided."""

    inputs: Inputs
    locked: LockedImage | None
    """What is installed, where that is known before the build."""
    options: Options
    tag: str
    digest: str
    """The same digest needs no second build."""

    @property
    def name(self) -> str:
        """Of the image."""
        return self.inputs.spec.name

    @property
    def dockerfile(self) -> Path:
        """What is built."""
        bundle = self.options.bundle
        return (bundle / "recipe" if bundle else catalogue.folder(self.name)) / "Dockerfile"


@data
class Built:
    """An image that is there."""

    tag: str
    id: str
    size: int
    """Bytes."""
    seconds: float
    fresh: bool
    """False when nothing had changed."""
    size_before: int | None = None
    """Bytes of the image that had this tag before."""
    kept_as: str | None = None
    """What that image is called now, where it is another one."""
    steps: tuple[progress.Step, ...] = ()
    locked: LockedImage | None = None
    """What was installed; None when nothing was built."""


def plan(inputs: Inputs, options: Options, locked: LockedImage | None = None) -> BuildPlan:
    """Plan a build of `inputs`, or of what is locked for them."""
    digest = locked.digest if locked else inputs.digest
    if options.runtime_digest:
        digest += f"+{options.runtime_digest.removeprefix('sha256:')[:16]}"
    if options.reproducible:
        digest += "+reproducible"
    tag = images.image_tag(inputs.spec.name) if options.tag is None else check_tag(options.tag)
    return BuildPlan(inputs=inputs, locked=locked, options=options, tag=tag, digest=digest)


def build(decided: BuildPlan, show: Callable[[str], None], *, force: bool = False) -> Built:
    """Build, unless the tag already is this very build; push it in either case where that is asked for.

    `show` gets each line of BuildKit's progress. Raises BuildError.
    """
    started = time.monotonic()
    client = engine.connect()
    output = decided.options.output
    if not output.to_engine:
        locked, steps = _made(decided, show)
        seconds = time.monotonic() - started
        return Built(tag=output.place, id="", size=output.size, seconds=seconds, fresh=True, steps=steps, locked=locked)
    before = _find(decided.tag, client)
    with kept.keeping(client, decided.tag, before.id if before else None) as kept_as:
        there = not force and _is_there(decided, before, client)
        made = None if there else _made(decided, show)
    found = _finished(decided, client)
    return Built(
        tag=decided.tag,
        id=found.id,
        size=found.size,
        seconds=time.monotonic() - started,
        fresh=not there,
        size_before=before.size if before else None,
        kept_as=kept_as if before and before.id != found.id else None,
        locked=made[0] if made else None,
        steps=made[1] if made else (),
    )


def _made(decided: BuildPlan, show: Callable[[str], None]) -> tuple[LockedImage, tuple[progress.Step, ...]]:
    locked = decided.locked or resolve(decided.inputs)
    return locked, _run(replace(decided, locked=locked), show)


def _finished(decided: BuildPlan, client: "DockerClient") -> "_Found":
    """What the tag is after the build, pushed where that is asked for, also when there was nothing to build."""
    found = _find(decided.tag, client)
    if found is None:
        raise BuildError(f"{decided.tag}: built, but the engine has no such image", hint="docker images")
    if decided.options.output.push:
        push(decided.tag)
    return found


def _is_there(decided: BuildPlan, before: "_Found | None", client: "DockerClient") -> bool:
    """Whether this very build is on the engine already, under its tag or (which then gets the tag back) another."""
    if before is not None and before.digest == decided.digest:
        return True
    same = kept.find(client, decided.tag, decided.digest)
    if same is not None:
        with engine.engine_errors(f"tagging {decided.tag}"):
            same.tag(decided.tag)
    return same is not None


def argv(decided: BuildPlan) -> list[str]:
    """The buildx command, less the contexts, secrets and files that are made when it runs."""
    inputs, options = decided.inputs, decided.options
    words = [
        "docker",
        "buildx",
        "build",
        "--progress=plain",
        "--provenance=false",
        "--sbom=false",
        f"--file={decided.dockerfile}",
    ]
    words += [
        f"--target={'baked' if options.runtime else 'image'}",
        f"--tag={decided.tag}",
        f"--platform={inputs.platform}",
    ]
    arguments = {"BASE": base_reference(inputs), "PYTHON": inputs.variant.python}
    if options.reproducible:
        arguments["SOURCE_DATE_EPOCH"] = str(contexts.EPOCH)
    words += [f"--build-arg={k}={v}" for k, v in arguments.items()]
    words += [f"--build-arg={p}" for p in inputs.proxies]
    words += [f"--label={k}={v}" for k, v in labels(decided).items()]
    words += [f"--network={inputs.network}"] if inputs.network else []
    words += ["--no-cache"] if options.no_cache else []
    return words


def base_reference(inputs: Inputs) -> str:
    """The base as the Dockerfile names it: by its name where it is here (and was compared), else by digest where that is known."""
    base = inputs.base
    pulled = base.digest and not inputs.base_is_here and "@" not in base.name
    return f"{base.name}@{base.digest}" if pulled else base.name


def labels(decided: BuildPlan) -> dict[str, str]:
    """What `kit run` and the next build read off the image."""
    variant = decided.inputs.variant
    found = {
        names.LABEL_IMAGE: decided.name,
        names.LABEL_BUILD: decided.digest,
        names.LABEL_TORCH: f"{variant.torch}+{variant.name}",
    }
    if variant.build.driver:
        found[names.LABEL_DRIVER] = variant.build.driver
    if variant.build.capabilities:
        found[names.LABEL_CAPABILITIES] = ",".join(variant.build.capabilities) + ("+" if variant.build.forward else "")
    return found


def command(decided: BuildPlan) -> str:
    """The command for `--print`; the contexts that kit makes are shown by what is in them."""
    options = decided.options
    words = [*argv(decided), *options.output.shown(decided.tag, reproducible=options.reproducible)]
    more = ["--build-context=locked=FOLDER_OF_WHAT_IS_LOCKED"]
    more += contexts.folders(decided.inputs.wheels or Path("EMPTY_FOLDER"), options.bundle, options.runtime)
    more += [contexts.secret("ca", decided.inputs.ca)] if decided.inputs.ca else []
    more += ["--secret=id=index,src=FILE_WITH_INDEX_URL"] if decided.inputs.index_url else []
    return " \\\n  ".join([" ".join(words[:3]), *words[3:], *more, str(decided.dockerfile.parent)])


@data
class _Found:
    id: str
    size: int
    digest: str


def _find(tag: str, client: "DockerClient") -> _Found | None:
    """What the tag is today."""
    with engine.engine_errors("looking for the image"):
        try:
            found = engine.find_image(client, tag)
        except ImageNotFound:
            return None
        image = client.images.get(found.id)
        digest = image.labels.get(names.LABEL_BUILD, "")
        return _Found(id=found.id, size=int(image.attrs.get("Size", 0)), digest=digest)


def _run(decided: BuildPlan, show: Callable[[str], None]) -> tuple[progress.Step, ...]:
    options = decided.options
    with (
        contexts.made(decided.inputs, _locked(decided), options.bundle, options.runtime) as extra,
        options.output.made(decided.tag, reproducible=options.reproducible) as where,
    ):
        return _run_buildx(decided, [*argv(decided), *where, *extra, str(decided.dockerfile.parent)], show)


def _run_buildx(decided: BuildPlan, words: list[str], show: Callable[[str], None]) -> tuple[progress.Step, ...]:
    log = _log_file(decided.name)
    lines: list[str] = []
    child = process.Child(words, stderr=process.TO_STDOUT)
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
        raise BuildError(f"{decided.tag}: {progress.failure(lines, _locked(decided))}", hint=f"the whole log: {log}")
    return progress.steps(lines)


def _locked(decided: BuildPlan) -> LockedImage:
    if decided.locked is None:
        raise ValueError("a build that runs knows what it installs")
    return decided.locked


def _log_file(name: str) -> Path:
    folder: Final = paths.cache_home() / "builds"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
