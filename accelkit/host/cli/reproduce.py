"""`kit reproduce`: a recorded run again, on the recorded code."""

import sys
from typing import TYPE_CHECKING, Any, cast

import typer

if TYPE_CHECKING:
    from accelkit.host.config.model import Backend
    from accelkit.host.launch.again import Again
    from accelkit.host.runs.record import Record
    from accelkit.host.runs.replay import Difference

app = typer.Typer(rich_markup_mode=None)


@app.command(no_args_is_help=True)
def reproduce(
    run_id: str = typer.Argument(..., metavar="ID", help="A run's ID, the beginning of one, or last."),
    on: str = typer.Option(None, "--on", metavar="docker|local", help="Another backend than the recorded one."),
    verify: bool = typer.Option(
        False, "--verify", help="Compare metrics and outputs: exit 0 and the word bitwise, or 1."
    ),
    allow: list[str] = typer.Option(
        [],
        "--allow",
        metavar="KIND",
        help="Go on though this differs: image, inputs, packages, hardware, runtime, or all.",
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="List the differences and print the plan; start nothing."),
) -> None:
    """Run a recorded run again: the same image, code, command, config and seeds. Says first what differs."""
    from pathlib import Path

    from accelkit.host.errors import UsageError
    from accelkit.host.launch import again
    from accelkit.host.launch.signals import Guard, Interrupted
    from accelkit.host.runs.store import Store

    if on not in (None, "docker", "local"):
        raise UsageError(f"--on {on}: unknown; allowed are docker, local")
    store = Store(Path.cwd())
    record = store.load(run_id)
    try:
        with (
            Guard() as guard,
            again.prepare(record, store, ("kit", *sys.argv[1:]), cast("Backend | None", on)) as ready,
        ):
            code = _go(record, ready, guard, verify=verify, allowed=_kinds(allow), dry_run=dry_run)
    except Interrupted as told:
        code = told.exit_code
    raise typer.Exit(code)


def _kinds(allow: list[str]) -> set[str]:
    """The kinds that --allow names, also several in one, separated by commas. Raises UsageError for an unknown one."""
    from accelkit.host.errors import UsageError
    from accelkit.host.runs.replay import REFUSED

    kinds = {part.strip() for text in allow for part in text.split(",")}
    unknown = kinds - {*REFUSED, "all"}
    if unknown:
        raise UsageError(f"--allow {min(unknown)}: unknown; allowed are {', '.join(REFUSED)}, all")
    return kinds


def _tell(differences: "list[Difference]") -> None:
    """All differences, those of the working tree below a line that says what they mean, folders of many files in one."""
    from accelkit.host import render
    from accelkit.host.runs import replay

    for difference in differences:
        if difference.kind != "tree":
            render.note(str(difference))
    tree = [difference for difference in differences if difference.kind == "tree"]
    if tree:
        lines = "\n  ".join(replay.by_folder(tree))
        render.note(f"files here are not as recorded; the recorded ones run, yours stay as they are:\n  {lines}")


def _way_on(refused: "list[Difference]", record: "Record", ready: "Again") -> str:
    """What to type where a difference stopped the reproduction."""
    from accelkit.host.runs import replay

    kinds = ",".join(sorted({d.kind for d in refused}))
    on = f"to go on all the same: --allow {kinds}"
    image = next((d for d in refused if d.kind == "image"), None)
    if image is None:
        return on
    if image.now == replay.NOT_THERE:
        return f"build it again from what it was built from (kit build --locked); {on}"
    here = record.image is not None and ready.request.config.image == record.image.id
    return f"the engine still has the recorded image, which is what would run; {on}" if here else on


def _go(record: "Record", ready: "Again", guard: Any, *, verify: bool, allowed: set[str], dry_run: bool) -> int:
    from accelkit.host import render
    from accelkit.host.cli.run import finish
    from accelkit.host.errors import DifferenceError
    from accelkit.host.launch import again, api
    from accelkit.host.launch import request as requests
    from accelkit.host.launch.screen import Terminal
    from accelkit.host.runs import compare, replay

    _tell(ready.differences)
    refused = replay.refused(ready.differences, allowed)
    if refused:
        raise DifferenceError(f"not as recorded: {refused[0]}", hint=_way_on(refused, record, ready))
    if dry_run:
        prepared = requests.prepare(ready.request)
        api.release(prepared)
        render.out(requests.dry_run(prepared))
        return 0
    now = api.run(ready.request, Terminal(), guard)
    kept = again.keep_outputs(ready, now)
    if kept is not None:
        render.note(f"what it wrote beside its code is kept in {kept}")
    code = finish(now)
    if not verify or code:
        return code
    result = compare.compare(record, now)
    render.out(str(result))
    return 0 if result.bitwise else 1
