"""`kit build`: an image for a hardware."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from accelkit.host.cli import options
from accelkit.host.config.model import BuildConfig

app = typer.Typer(rich_markup_mode=None)


@app.command(no_args_is_help=True)
@options.of(BuildConfig)
def build(
    image: str = typer.Argument(..., metavar="IMAGE", help="Name of the image: cpu."),
    tag: str = typer.Option(None, "--tag", metavar="TAG", help="Tag instead of accelkit-IMAGE:latest."),
    no_cache: bool = typer.Option(False, "--no-cache", help="Build every step again."),
    print_: bool = typer.Option(
        False, "--print", help="Print the command, the Dockerfile and the digest; build nothing."
    ),
    config_file: Path = options.CONFIG_FILE,
    given: dict[str, Any] | None = None,
) -> None:
    """Build an image; nothing is done when nothing has changed."""
    from accelkit.host import render
    from accelkit.host.image import build as building
    from accelkit.host.launch.signals import Guard, Interrupted

    try:
        with Guard():
            resolved = options.load(given or {}, config_file)
            decided = building.plan(image, resolved.config.build, tag=tag, no_cache=no_cache)
            if print_:
                render.out(
                    f"{building.command(decided)}\n# Dockerfile: {decided.context / 'Dockerfile'}\n# digest: {decided.digest}"
                )
                return
            built = building.build(decided, _display(), force=no_cache)
    except Interrupted as told:
        raise typer.Exit(told.exit_code) from None
    words = f"built in {built.seconds:.1f} s" if built.fresh else f"up to date ({built.seconds:.1f} s)"
    render.out(f"{built.tag}  {built.id[:19]}  {built.size / 1e6:.0f} MB  {words}")


def _display() -> Callable[[str], None]:
    """BuildKit's steps as they begin; with -v every line; nothing with -q."""
    from accelkit.host import render

    def show(line: str) -> None:
        if render.verbosity() >= 1 or (line.startswith("#") and ("] " in line and "[" in line) and "DONE" not in line):
            render.note(line)

    return show
