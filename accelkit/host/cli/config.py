"""`kit config`: the wizard, and what looks at the config it writes."""

import os
import sys
from pathlib import Path
from typing import Any

import typer

from accelkit.host.cli import options
from accelkit.host.config.model import BuildConfig, RunConfig

app = typer.Typer(rich_markup_mode=None)

PROJECT = typer.Option(False, "--project", help="Write ./kit.yaml instead of your default.")
FORCE = typer.Option(False, "--force", help="Replace a file that is there.")


@app.callback(invoke_without_command=True)
@options.of(RunConfig, BuildConfig, without=("build.project",))
def config(
    context: typer.Context,
    project: bool = PROJECT,
    force: bool = FORCE,
    yes: bool = typer.Option(False, "-y", "--yes", help="Ask nothing: flags, and defaults from the hardware found."),
    config_file: Path = typer.Option(None, "--config-file", metavar="FILE", help="Write this file."),
    given: dict[str, Any] | None = None,
) -> None:
    """Write a commented config file: a short wizard, or flags only."""
    if context.invoked_subcommand is not None:
        return
    from accelkit.host import hardware, render
    from accelkit.host.config import wizard

    target = _target(config_file, project=project)
    _refuse_existing(target, force=force)
    answered = given or {}
    found, engine = hardware.probe(), _has_engine()
    if yes or not sys.stdin.isatty():
        values = wizard.unattended(answered, found, engine=engine)
    else:
        values = wizard.ask(answered, found, engine=engine, reply=_reply, say=render.note)
    _write(target, values)


@app.command()
def show(
    config_file: Path = options.CONFIG_FILE, json_: bool = typer.Option(False, "--json", help="Print JSON.")
) -> None:
    """Print each value and where it comes from."""
    import json

    from accelkit.host import render

    values = options.load({}, config_file).values()
    shown = {key: (render.masked(value), origin.text) for key, (value, origin) in values.items()}
    if json_:
        render.out(
            json.dumps({key: {"value": value, "origin": where} for key, (value, where) in shown.items()}, indent=2)
        )
    else:
        render.out(
            render.table(("KEY", "VALUE", "FROM"), [(k, json.dumps(v), where) for k, (v, where) in shown.items()])
        )


@app.command()
def check(
    file: Path | None = typer.Argument(None, help="File to check; ./kit.yaml and your default without it."),
) -> None:
    """Check a config file; every problem at once."""
    from accelkit.host import paths, render
    from accelkit.host.config import loading
    from accelkit.host.config.problems import ConfigError

    if file is None:
        options.load({}, None)
        read = [str(path) for path in (paths.user_config(), Path("kit.yaml")) if path.is_file()]
    elif problems := loading.check_file(file):
        raise ConfigError(problems)
    else:
        read = [str(file)]
    render.note(
        f"{' and '.join(read)}: good"
        if read
        else f"there is no kit.yaml here and no {paths.user_config()}; kit config writes one"
    )


@app.command()
def schema() -> None:
    """Print the JSON schema of kit.yaml, for editors."""
    import json

    from accelkit.host import render
    from accelkit.host.config.schema import schema as make

    render.out(json.dumps(make(), indent=2))


@app.command()
def default(project: bool = PROJECT, force: bool = FORCE) -> None:
    """Write a config with every key at its default."""
    target = _target(None, project=project)
    _refuse_existing(target, force=force)
    _write(target, {})


@app.command("import")
def import_(
    file: Path = typer.Argument(..., help="Accelerate's default_config.yaml (or .json)."),
    project: bool = PROJECT,
    output: Path = typer.Option(None, "--output", metavar="FILE", help="Write this file."),
    force: bool = FORCE,
) -> None:
    """Turn a config of Accelerate into one of kit's; names what it cannot carry over."""
    from accelkit.host import render
    from accelkit.host.config import foreign

    target = _target(output, project=project)
    _refuse_existing(target, force=force)
    imported = foreign.read(file)
    _write(target, imported.values)
    for line in imported.left:
        render.warn(f"not carried over: {line}")


def _target(file: Path | None, *, project: bool) -> Path:
    from accelkit.host import paths

    return file or (Path("kit.yaml") if project else paths.user_config())


def _refuse_existing(target: Path, *, force: bool) -> None:
    from accelkit.host.errors import UsageError

    if target.exists() and not force:
        raise UsageError(f"{target}: already there", hint="--force replaces it")


def _write(target: Path, values: dict[str, object]) -> None:
    """Write and read back: a file with problems is never left behind."""
    from accelkit.contract import codec
    from accelkit.host import render
    from accelkit.host.config import loading, writer

    loading.check_values(values)
    target.parent.mkdir(parents=True, exist_ok=True)
    codec.write_text(os.path.realpath(target), writer.render(values))  # what a link names, not the link
    render.out(f"wrote {target}")


def _has_engine() -> bool:
    from accelkit.host.engine import client
    from accelkit.host.errors import EngineError

    try:
        client.connect(timeout=3)
    except EngineError:
        return False
    return True


def _reply(text: str, default: str) -> str:
    answer: str = typer.prompt(text, default=default, show_default=bool(default))
    return answer
