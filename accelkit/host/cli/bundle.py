"""`kit bundle`: everything that an image is made of, in one folder, for a machine without a network."""

from pathlib import Path
from typing import Any

import typer

from accelkit.host.cli import options
from accelkit.host.config.model import BuildConfig

app = typer.Typer(rich_markup_mode=None)


@app.command(no_args_is_help=True)
@options.of(BuildConfig)
def bundle(
    image: str = typer.Argument(..., metavar="IMAGE", help="Name of the image: cpu, cuda, tpu, ... (kit images)."),
    folder: Path = typer.Argument(..., metavar="DIR", help="Folder to write; it must not be there yet, or be empty."),
    config_file: Path = options.CONFIG_FILE,
    given: dict[str, Any] | None = None,
) -> None:
    """Write the base image, every wheel and Debian package, the recipe, the lock, an SBOM and provenance into one folder."""
    from accelkit.host import render
    from accelkit.host.cli.build import display
    from accelkit.host.image import bundle as bundles
    from accelkit.host.image import debian, locking, registry
    from accelkit.host.image.resolve import resolve
    from accelkit.host.launch.signals import Guard, Interrupted

    try:
        with Guard():
            config = options.load(given or {}, config_file).config.build
            debian.check(tuple(config.apt))
            bundles.check(folder.resolve())
            settled = locking.settle(image, config, Path.cwd())
            inputs = registry.pinned(settled.inputs)
            size = bundles.write(folder.resolve(), inputs, settled.locked or resolve(inputs), display())
    except Interrupted as told:
        raise typer.Exit(told.exit_code) from None
    render.out(f"{folder}  {size / 1e6:.0f} MB  on the other machine: kit build {image} --from-bundle {folder}")
