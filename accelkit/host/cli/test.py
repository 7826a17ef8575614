"""`kit test`: the self-test on the configured topology."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from accelkit.host.cli import options
from accelkit.host.config.model import RunConfig

if TYPE_CHECKING:
    from accelkit.host.config.loading import Resolved
    from accelkit.host.runs.record import Record

app = typer.Typer(rich_markup_mode=None)

FAILING_CODE = 7
"""What the last rank of the failing run exits with."""


@app.command()
@options.of(RunConfig)
def self_test(
    json_: bool = typer.Option(False, "--json", help="Print JSON."),
    config_file: Path = options.CONFIG_FILE,
    given: dict[str, Any] | None = None,
) -> None:
    """Run the self-test in the image, on this topology: a table of checks with times."""
    from accelkit.host import render
    from accelkit.host.launch.signals import Guard, Interrupted
    from accelkit.host.runs.store import Store

    store = Store(Path.cwd())

    try:
        with Guard() as guard:
            resolved = options.load(given or {}, config_file)
            checked, checks = _checks(resolved, guard)
            failing, failure = _failure(resolved, guard)
            results = [*checks, failure]
    except Interrupted as told:
        raise typer.Exit(told.exit_code) from None
    if json_:
        render.out(json.dumps(results, indent=2))
    else:
        rows = [("ok" if r["ok"] else "FAILED", f"{r['seconds']:.2f} s", r["name"]) for r in results]
        render.out(render.table(("", "TIME", "CHECK"), rows))
    failed = [r for r in results if not r["ok"]]
    if not failed:
        for record in (
            checked,
            failing,
        ):  # one of them failed on purpose, which nobody should take for a run that failed
            store.remove(record.run_id)
        render.note(f"all {len(results)} checks are good")
    for result in failed:
        render.problem(f"{result['name']}: {result['message']}")
    raise typer.Exit(1 if failed else 0)


def _run(resolved: "Resolved", module: str, guard: Any) -> "Record":
    from accelkit.host.cli.run import program_of, request_of
    from accelkit.host.launch import api
    from accelkit.host.launch.screen import Quiet

    return api.run(request_of(resolved, program_of(module, [], module=True)), Quiet(), guard)


def _checks(resolved: "Resolved", guard: Any) -> "tuple[Record, list[dict[str, Any]]]":
    """The checks that the ranks made; one failed check when they did not come to their end."""
    record = _run(resolved, "accelkit.runtime.selftest", guard)
    path = Path(record.plan.run_dir) / "exchange" / "selftest.json"
    outcome = record.outcome
    if outcome is None or outcome.exit_code or not path.exists():
        why = outcome.root_cause.message if outcome and outcome.root_cause else "no results were written"
        seconds = (outcome.ended_at - (outcome.started_at or outcome.ended_at)) if outcome else 0.0
        return record, [{"name": "The ranks come to their end", "ok": False, "seconds": seconds, "message": why}]
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return record, found


def _failure(resolved: "Resolved", guard: Any) -> "tuple[Record, dict[str, Any]]":
    """A rank that fails is named, with its exit code, and ends the others."""
    record = _run(resolved, "accelkit.runtime.selftest.failing", guard)
    outcome, last = record.outcome, record.plan.spec.world_size - 1
    root = outcome.root_cause if outcome else None
    good = outcome is not None and outcome.exit_code == FAILING_CODE and root is not None and root.rank == last
    seconds = outcome.ended_at - (outcome.started_at or outcome.ended_at) if outcome else 0.0
    got = root.message if root else "no failure"
    message = "" if good else f"expected rank {last} and exit code {FAILING_CODE}, got: {got}"
    return record, {
        "name": "A rank that fails is named and ends the run",
        "ok": good,
        "seconds": seconds,
        "message": message,
    }
