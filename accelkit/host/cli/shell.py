"""`kit shell`: a shell in the image, with what a run would have."""

from pathlib import Path
from typing import Any

import typer

from accelkit.host.cli import options
from accelkit.host.config.model import RunConfig

app = typer.Typer(rich_markup_mode=None)


@app.command(context_settings={"allow_interspersed_args": False})
@options.of(RunConfig)
def shell(
    command: list[str] = typer.Argument(None, metavar="[COMMAND]...", help="Command instead of bash."),
    config_file: Path = options.CONFIG_FILE,
    given: dict[str, Any] | None = None,
) -> None:
    """Open a shell in the image, with a run's mounts, user, variables and limits."""
    from accelkit.contract.spec import Program
    from accelkit.host.cli.run import request_of
    from accelkit.host.errors import UsageError
    from accelkit.host.launch import api
    from accelkit.host.launch.signals import Guard, Interrupted

    resolved = options.load(given or {}, config_file)
    if resolved.config.run.on != "docker":
        raise UsageError("kit shell: there is no image on local", hint="your own shell has the same interpreter")
    request = request_of(resolved, Program(kind="module", target="this"))
    try:
        with Guard() as guard:
            code = api.shell(request, command or ["bash"], guard)
    except Interrupted as told:
        code = told.exit_code
    raise typer.Exit(code)
