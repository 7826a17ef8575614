"""`kit build`: an image for a hardware."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from accelkit.host.cli import options
from accelkit.host.config.model import BuildConfig

if TYPE_CHECKING:
    from accelkit.host.config.loading import Resolved
    from accelkit.host.image.build import BuildPlan, Built
    from accelkit.host.image.catalogue import Build
    from accelkit.host.image.lockfile import LockedImage

app = typer.Typer(rich_markup_mode=None)

_REPRODUCIBLE: Final = typer.Option(
    False, "--reproducible", help="The same bytes whenever it is built: times are rewritten (slower)."
)
_VERIFY: Final = typer.Option(
    False, "--verify", help="Build again without any cache and compare with the image that is here, bit for bit."
)
_FROM_BUNDLE: Final = typer.Option(
    None, "--from-bundle", metavar="DIR", help="Build from what kit bundle wrote, without any network."
)
_OUTPUT: Final = typer.Option(
    None, "--output", metavar="tar|oci[=FILE]", help="Write an archive (for docker load, or an OCI layout) instead."
)
_BAKE: Final = typer.Option(False, "--bake-runtime", help="Put the runtime into the image, for targets without mounts.")
_PRINT: Final = typer.Option(False, "--print", help="Print the command, the Dockerfile and the digest; build nothing.")


@app.command()
@options.of(BuildConfig)
def build(
    image: str = typer.Argument(..., metavar="IMAGE", help="Name of the image: cpu, cuda, tpu, ... (kit images)."),
    tag: str = typer.Option(None, "--tag", metavar="TAG", help="Tag instead of accelkit-IMAGE:latest."),
    no_cache: bool = typer.Option(False, "--no-cache", help="Build every step again."),
    locked: bool = typer.Option(False, "--locked", help="Only what kit.lock says; refuse when it does not fit."),
    reproducible: bool = _REPRODUCIBLE,
    verify: bool = _VERIFY,
    from_bundle: Path = _FROM_BUNDLE,
    sbom: Path = typer.Option(None, "--sbom", metavar="DIR", help="Write sbom.spdx.json and provenance.json there."),
    push: bool = typer.Option(False, "--push", help="Push the image to the registry that its tag names."),
    output: str = _OUTPUT,
    bake_runtime: bool = _BAKE,
    print_: bool = _PRINT,
    config_file: Path = options.CONFIG_FILE,
    given: dict[str, Any] | None = None,
) -> None:
    """Build an image; nothing is done when nothing has changed."""
    from accelkit.host.image import sbom as documents
    from accelkit.host.launch.signals import Guard, Interrupted

    try:
        with Guard():
            if verify:
                _check_verify({"--output": output, "--push": push, "--sbom": sbom})
            if sbom is not None:
                documents.check(sbom)
            resolved = options.load(given or {}, config_file)
            decided = _decide(
                image, resolved, locked=locked, write=not print_, from_bundle=from_bundle, tag=tag, no_cache=no_cache,
                reproducible=reproducible or verify, output=output, push=push, bake=bake_runtime,
            )  # fmt: skip
            if print_:
                _print(decided)
            elif verify:
                _verify(decided)
            else:
                _build(decided, force=no_cache, sbom=sbom)
    except Interrupted as told:
        raise typer.Exit(told.exit_code) from None


def _check_verify(others: dict[str, object]) -> None:
    """A comparison makes nothing that stays: raise UsageError for what would have no effect beside it."""
    from accelkit.host.errors import UsageError

    typed = [flag for flag, value in others.items() if value]
    if typed:
        raise UsageError(
            f"--verify with {', '.join(typed)}: it compares, and writes nothing", hint="leave one of them out"
        )


def _decide(
    image: str, resolved: "Resolved", *, locked: bool, write: bool, from_bundle: Path | None, output: str | None, push: bool,
    bake: bool, **how: Any,
) -> "BuildPlan":  # fmt: skip
    """The plan of the build: from a bundle, from the project's lock, or from what resolves now."""
    from accelkit.host.image import build as building
    from accelkit.host.image import bundle, debian, locking, overruled
    from accelkit.host.image import output as outputs

    config = resolved.config.build
    if from_bundle is not None:
        overruled.refuse(resolved, locked=locked)
    debian.check(tuple(config.apt))
    if how["tag"] is not None:
        outputs.check_tag(how["tag"])
    place = outputs.parse(output, push=push, folder=Path.cwd(), name=image)
    how |= {"output": place, **_runtime(bake)}
    if from_bundle is not None:
        folder = from_bundle.resolve()
        content = bundle.read(folder, image)
        found = bundle.inputs_of(folder, content)
        _tell(resolved, content, found.variant.build)
        return building.plan(found, building.Options(bundle=folder, **how), content)
    settled = locking.settle(image, config, Path.cwd(), must=locked, write=write)
    return building.plan(settled.inputs, building.Options(**how), settled.locked)


def _tell(resolved: "Resolved", content: "LockedImage", build: "Build") -> None:
    """What stands in a config beside a bundle, and has no effect."""
    from accelkit.host import render
    from accelkit.host.image import overruled

    if others := overruled.told(resolved, content, build, Path.cwd()):
        render.warn("\n  ".join(["the bundle says what is in the image; without effect:", *others]))
    if fetching := overruled.of_fetching(resolved):
        render.note(f"nothing is fetched beside a bundle; without effect: {', '.join(fetching)}")


def _print(decided: "BuildPlan") -> None:
    from accelkit.host import render
    from accelkit.host.image import build as building

    render.out(f"{building.command(decided)}\n# Dockerfile: {decided.dockerfile}\n# digest: {decided.digest}")


def _verify(decided: "BuildPlan") -> None:
    from accelkit.host import render
    from accelkit.host.image.verify import verify

    render.out(f"{decided.tag}  {verify(decided, display())[:19]}  built again, it is the same, bit for bit")


def _build(decided: "BuildPlan", *, force: bool, sbom: Path | None) -> None:
    from accelkit.host import render
    from accelkit.host.image import build as building
    from accelkit.host.image import sbom as documents

    built = building.build(decided, display(), force=force or sbom is not None)
    if sbom is not None and built.locked is not None:
        made = decided.options.output.digests or {f"accelkit-{decided.name}": built.id.removeprefix("sha256:")}
        documents.write(sbom, decided.name, built.locked, made)
    for line in _layers(built):
        render.note(line)
    if built.kept_as is not None:
        render.note(f"the image before is kept for the runs that used it, as {built.kept_as} (docker rmi frees it)")
    render.out(summary(built))


def _runtime(bake: bool) -> dict[str, Any]:
    if not bake:
        return {}
    from accelkit.host.launch.stage import stage_runtime

    staged = stage_runtime()
    return {"runtime": staged.folder, "runtime_digest": staged.digest}


def summary(built: "Built") -> str:
    """The line that ends a build: tag, ID, size beside the last build's, time."""
    words = f"built in {built.seconds:.1f} s" if built.fresh else f"up to date ({built.seconds:.1f} s)"
    size = f"{built.size / 1e6:.0f} MB"
    if built.fresh and built.size_before is not None:
        size += f" ({(built.size - built.size_before) / 1e6:+.0f} MB)"
    return "  ".join(word for word in (built.tag, built.id[:19], size, words) if word)


def _layers(built: "Built") -> list[str]:
    """What was done again and what was not."""
    return [f"{s.name}: {'cached' if s.seconds is None else f'{s.seconds:.1f} s'}" for s in built.steps]


def display() -> Callable[[str], None]:
    """BuildKit's steps as they begin, once each; with -v every line; nothing with -q."""
    from accelkit.host import render
    from accelkit.host.image import progress

    seen: set[str] = set()

    def show(line: str) -> None:
        step = line if render.verbosity() >= 1 else progress.begun(line)
        if step is not None and (render.verbosity() >= 1 or step not in seen):
            seen.add(step)
            render.note(step)

    return show
