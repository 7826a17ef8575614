"""`kit lock`: what images are made of, down to the last file."""

from pathlib import Path
from typing import Any

import typer

from accelkit.host.cli import options
from accelkit.host.config.model import BuildConfig

app = typer.Typer(rich_markup_mode=None)


@app.command()
@options.of(BuildConfig)
def lock(
    images: list[str] = typer.Argument(
        None, metavar="[IMAGE]...", help="Images; unset: those in kit.lock, else the configured one."
    ),
    upgrade: bool = typer.Option(False, "--upgrade", help="Take the newest versions instead of keeping those locked."),
    check: bool = typer.Option(
        False, "--check", help="Say whether kit.lock still fits (exit code 1: no); write nothing."
    ),
    config_file: Path = options.CONFIG_FILE,
    given: dict[str, Any] | None = None,
) -> None:
    """Write kit.lock: base image by digest, Python packages by version and sha256, Debian packages by version."""
    from accelkit.host import render
    from accelkit.host.errors import UsageError
    from accelkit.host.image import catalogue, debian, locking
    from accelkit.host.launch.signals import Guard, Interrupted

    if check and upgrade:
        raise UsageError("--check with --upgrade: one writes nothing, the other a lock", hint="leave one of them out")
    config = options.load(given or {}, config_file).config
    folder = Path.cwd()
    configured = config.run.image if config.run.image in catalogue.names() else "cpu"
    names = locking.images_of(folder, list(images or ()), configured)
    debian.check(tuple(config.build.apt))
    try:
        with Guard():
            if check:
                locking.check(names, config.build, folder)
                render.out(f"kit.lock fits: {', '.join(names)}")
                return
            for name in names:
                outcome, changes = locking.renew(name, config.build, folder, upgrade=upgrade)
                render.out("\n  ".join([f"{name}: {'as it was' if outcome == 'kept' else 'written'}", *changes]))
    except Interrupted as told:
        raise typer.Exit(told.exit_code) from None
