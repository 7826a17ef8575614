"""`kit run` (and `kit launch`): a script on every rank."""

import sys
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from accelkit.host.cli import options
from accelkit.host.config.model import RunConfig

if TYPE_CHECKING:
    from accelkit.contract.spec import Program
    from accelkit.host.config.loading import Resolved
    from accelkit.host.engine.inquiry import Inquiry
    from accelkit.host.launch.early import EarlyNodes
    from accelkit.host.launch.request import Request
    from accelkit.host.runs.record import Record

app = typer.Typer(rich_markup_mode=None)


@app.command(context_settings={"allow_interspersed_args": False})
@options.of(RunConfig)
def run(
    script: str = typer.Argument(..., metavar="SCRIPT", help="Script, or with -m a module."),
    arguments: list[str] = typer.Argument(None, metavar="[ARGS]...", help="Everything after the script goes to it."),
    module: bool = typer.Option(False, "-m", "--module", help="SCRIPT is a module's dotted name, as with python -m."),
    detach: bool = typer.Option(False, "--detach", "-d", help="Return at once; kit runs attach ID follows the run."),
    interactive: bool = typer.Option(False, "--interactive", help="Rank 0 gets this terminal, for a debugger."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Print the whole plan and every artefact; start nothing."),
    config_file: Path = options.CONFIG_FILE,
    given: dict[str, Any] | None = None,
) -> None:
    """Run a script on every rank of one or more nodes, and record the run."""
    from accelkit.host.launch.signals import Guard, Interrupted

    try:
        with Guard() as guard:
            resolved = options.load(given or {}, config_file)
            config, plain = resolved.config.run, not (detach or dry_run or interactive)
            with _early_nodes(config, plain=plain) as early, _inquiry(config) as inquiry:
                program = program_of(script, arguments or [], module=module)
                request = request_of(resolved, program, interactive=interactive, early=early, inquiry=inquiry)
                code = _start(request, guard, detach=detach, dry_run=dry_run)
    except Interrupted as told:
        code = told.exit_code
    raise typer.Exit(code)


def _inquiry(config: RunConfig) -> "AbstractContextManager[Inquiry | None]":
    """What a run in containers asks the engine, while we import the rest."""
    if config.on != "docker":
        return nullcontext()
    from accelkit.host.engine.inquiry import Inquiry

    return closing(Inquiry(config.image, networks=config.nodes > 1))


def _early_nodes(config: RunConfig, *, plain: bool) -> "AbstractContextManager[EarlyNodes | None]":
    """Local nodes that start while we plan; with containers there is nothing to start before the plan."""
    if config.on != "local" or not plain:
        return nullcontext()
    from accelkit.host.launch import early

    return closing(early.start(config.nodes))


def program_of(script: str, arguments: list[str], *, module: bool) -> "Program":
    """What every rank runs."""
    from accelkit.contract.spec import Program

    return Program(kind="module" if module else "script", target=script, args=tuple(arguments))


def request_of(
    resolved: "Resolved",
    program: "Program",
    *,
    interactive: bool = False,
    early: "EarlyNodes | None" = None,
    inquiry: "Inquiry | None" = None,
) -> "Request":
    """A request for a run in the current folder, as it was typed."""
    from accelkit.host.launch.request import Request
    from accelkit.host.runs.record import ConfigValue

    values = {
        key: ConfigValue(value=value, origin=origin.text)
        for key, (value, origin) in resolved.values().items()
        if key.startswith(
            "run."
        )  # how images are built is none of a run's business, and may hold a password of an index
    }
    return Request(
        config=resolved.config.run,
        values=values,
        program=program,
        command=("kit", *sys.argv[1:]),
        workdir=Path.cwd(),
        interactive=interactive,
        early=early,
        inquiry=inquiry,
    )


def _start(request: "Request", guard: Any, *, detach: bool, dry_run: bool) -> int:
    from accelkit.host import render
    from accelkit.host.launch import api
    from accelkit.host.launch import request as requests

    if request.config.on == "local" and requests.torch_is_missing():
        render.warn(
            "torch is not installed for this interpreter; pip install 'accelkit[runtime]' adds it for --on local"
        )
    if dry_run:
        prepared = requests.prepare(request)
        api.release(prepared)
        render.out(requests.dry_run(prepared))
        return 0
    if detach:
        return _detach(request)
    return finish(_run(request, guard))


def _run(request: "Request", guard: Any) -> "Record":
    from accelkit.host.launch import api
    from accelkit.host.launch.screen import Terminal

    return api.run_interactive(request, guard) if request.interactive else api.run(request, Terminal(), guard)


def _detach(request: "Request") -> int:
    from accelkit.host import render
    from accelkit.host.launch import api
    from accelkit.host.launch.request import prepare

    prepared = prepare(request)
    try:
        record = api.detach(prepared)
    finally:
        api.release(prepared)
    render.out(record.run_id)
    render.note(f"follow it: kit runs attach {record.run_id}   stop it: kit runs stop {record.run_id}")
    return 0


def finish(record: "Record") -> int:
    """Print what a person must know about a run that has ended, and return its exit code."""
    from accelkit.host import render
    from accelkit.host.launch import report

    if record.outcome is None:
        return 0
    if record.outcome.state == "ok":
        render.detail(f"run {record.run_id} ended well")
    else:
        render.failed(report.first_failure(record), report.summary(record))
    return record.outcome.exit_code
