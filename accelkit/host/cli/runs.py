"""`kit runs`: list, show, compare, follow, stop and clean."""

from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from accelkit.host.runs.differences import Unlike
    from accelkit.host.runs.record import Record
    from accelkit.host.runs.store import Entry, Store

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)

ID = typer.Argument(..., metavar="ID", help="A run's ID, the beginning of one, or last.")
JSON = typer.Option(False, "--json", help="Print JSON.")


def _store() -> "Store":
    from pathlib import Path

    from accelkit.host.runs.store import Store

    return Store(Path.cwd())


@app.command("list")
def list_(json_: bool = JSON) -> None:
    """List this folder's runs, newest first."""
    import json

    from accelkit.host import render

    rows = [_row(entry) for entry in _store().entries()]
    if json_:
        render.out(json.dumps(rows, indent=2))
        return
    headers = ("RUN", "STARTED", "TOOK", "STATE", "EXIT", "ON", "NODES", "RANKS", "COMMAND")
    keys = ("run_id", "started", "took", "state", "exit_code", "backend", "nodes", "world_size", "command")
    shown = [{**row, **_times(row)} for row in rows]
    render.out(render.table(headers, [["" if row.get(k) is None else row[k] for k in keys] for row in shown]))


def _times(row: dict[str, Any]) -> dict[str, str]:
    """When a run began, in local time, and how long it took, for people."""
    import time

    started = time.strftime("%m-%d %H:%M", time.localtime(row["created_at"]))
    seconds = row.get("seconds")
    return {
        "started": started,
        "took": "" if seconds is None else f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.0f} min",
    }


def _row(entry: "Entry") -> dict[str, Any]:
    from accelkit.host import render
    from accelkit.host.runs import status

    row: dict[str, Any] = {"run_id": entry.run_id, "state": status.of(entry), "created_at": entry.created_at}
    record = entry.record
    if record is None:
        return {**row, "exit_code": None, "command": entry.problem}
    spec = record.plan.spec
    return {
        **row,
        "exit_code": record.outcome.exit_code if record.outcome else None,
        "seconds": record.outcome.ended_at - record.created_at if record.outcome else None,
        "backend": record.plan.backend,
        "nodes": spec.nodes,
        "procs_per_node": spec.procs_per_node,
        "world_size": spec.world_size,
        "command": " ".join(render.masked(list(record.command))),
        "reproduces": record.reproduces,
    }


@app.command()
def show(run_id: str = ID, json_: bool = JSON) -> None:
    """Show what is recorded of a run."""
    from accelkit.contract import codec
    from accelkit.host import render

    store = _store()
    record = store.load(run_id)
    if json_:
        render.out(codec.dumps(render.masked(codec.to_dict(record))).rstrip())
        return
    facts = _facts(record, _row(store.entry(record.run_id)))
    width = max(map(len, facts))
    render.out("\n".join(f"{name.ljust(width)}  {value}" for name, value in facts.items() if value not in (None, "")))


def _facts(record: "Record", row: dict[str, Any]) -> dict[str, Any]:
    """What is shown of a run, by its label; nothing is said of what is None or empty."""
    outcome, settings = record.outcome, record.plan.spec.settings
    return {
        "run": record.run_id,
        "state": row["state"],
        "exit code": row["exit_code"],
        "cause": outcome.root_cause.message if outcome and outcome.root_cause else None,
        **_times(row),
        "command": row["command"],
        "on": record.plan.backend,
        "nodes x ranks": f"{row['nodes']} x {row['procs_per_node']}",
        "strategy": settings.strategy,
        "precision": settings.precision,
        "seed": settings.seed,
        "deterministic": "yes" if settings.deterministic else None,
        "image": record.image.id if record.image else None,
        "runtime": record.runtime_digest,
        "commit": f"{record.code.commit}{' + changes' if record.code.dirty else ''}"
        if record.code.commit
        else "not in git",
        "metrics": ", ".join(f"{n}={m.value}" for n, m in record.metrics.items()),
        "outputs": ", ".join([*record.outputs, *record.workdir_outputs]),
        "reproduces": record.reproduces,
        "folder": record.plan.run_dir,
    }


@app.command()
def diff(
    first: str = typer.Argument(..., metavar="ID", help="A run's ID, the beginning of one, or last."),
    second: str = typer.Argument(..., metavar="ID", help="Another."),
    json_: bool = JSON,
) -> None:
    """Tell what two runs have not in common: what went in, and what came out. Exit code 1 when they differ."""
    from accelkit.contract import codec, names
    from accelkit.host import render
    from accelkit.host.runs import differences

    store = _store()
    one, other = store.load(first), store.load(second)
    found = [_shown(unlike) for unlike in differences.between(one, other)]
    if json_:
        render.out(codec.dumps(found).rstrip())
    elif found:
        headers = ("KIND", "WHAT", one.run_id, other.run_id)
        render.out(render.table(headers, [[row["kind"], row["what"], row["first"], row["second"]] for row in found]))
    else:
        render.note(f"{one.run_id} and {other.run_id} have all in common")
    if found:
        raise typer.Exit(names.EXIT_FAILED)


def _shown(unlike: "Unlike") -> dict[str, str]:
    """A difference as it may be shown: secret-looking values are told to differ, not what they are."""
    from accelkit.host import render

    def text(value: object) -> str:
        shown = render.masked({unlike.what: value})[unlike.what]
        return " ".join(shown) if unlike.kind == "command" else str(shown)

    return {
        "kind": unlike.kind,
        "what": unlike.what,
        "first": text(unlike.first),
        "second": text(unlike.second),
    }


@app.command()
def logs(
    run_id: str = ID,
    rank: int | None = typer.Option(None, "--rank", min=0, metavar="N", help="Only this rank's, as it printed it."),
    follow: bool = typer.Option(False, "-f", "--follow", help="Go on until the run has ended."),
) -> None:
    """Print the ranks' logs."""
    from accelkit.host.errors import UsageError
    from accelkit.host.runs import follow as following

    store = _store()
    record = store.load(run_id)
    if rank is not None and rank >= record.plan.spec.world_size:
        raise UsageError(f"--rank {rank}: the run has ranks 0 to {record.plan.spec.world_size - 1}")
    following.print_logs(store, record, rank, until_end=follow)


@app.command()
def attach(run_id: str = ID) -> None:
    """Follow a run to its end and exit with its exit code. Ctrl-C leaves the run alone."""
    from accelkit.host import render
    from accelkit.host.launch import report
    from accelkit.host.runs import follow as following

    store = _store()
    record = following.print_logs(store, store.load(run_id), None, until_end=True)
    if record.outcome is None:
        render.warn(f"run {record.run_id} has lost its supervisor; kit runs stop {record.run_id} ends it")
        raise typer.Exit(125)
    if record.outcome.state != "ok":
        render.failed(report.first_failure(record), report.summary(record))
    raise typer.Exit(record.outcome.exit_code)


@app.command()
def stop(run_id: str = ID) -> None:
    """Stop a run and remove everything of it but its record."""
    from accelkit.host import render
    from accelkit.host.launch import stopping

    store = _store()
    record = store.load(run_id)
    if record.outcome is not None:
        stopping.sweep(record.run_id, with_engine=stopping.uses_engine(record))
        render.note(f"run {record.run_id} had ended already ({record.outcome.state})")
        return
    record = stopping.stop(store, record)
    render.note(f"run {record.run_id} is stopped")


@app.command()
def remove(
    run_ids: list[str] = typer.Argument(..., metavar="ID...", help="IDs, or beginnings of them, or last."),
) -> None:
    """Remove runs with their records, logs and outputs. Runs that are not over are refused."""
    from accelkit.host import render
    from accelkit.host.errors import UsageError
    from accelkit.host.launch import stopping
    from accelkit.host.runs import status

    store = _store()
    entries = [store.entry(store.find(run_id).name) for run_id in run_ids]
    for entry in entries:
        if status.of(entry) in (*status.ALIVE, "orphaned"):
            raise UsageError(f"run {entry.run_id} is not over", hint=f"kit runs stop {entry.run_id}")
    for entry in entries:
        stopping.sweep(entry.run_id, with_engine=stopping.had_containers(entry))
        store.remove(entry.run_id)
    render.note(f"removed {', '.join(entry.run_id for entry in entries)}")


@app.command()
def clean(
    run_id: str = typer.Argument(None, metavar="[ID]", help="Only this run; all that do not run any more without it."),
) -> None:
    """Remove what runs left behind: containers, networks, volumes, processes, secrets. Records stay."""
    from accelkit.host import render
    from accelkit.host.errors import EngineError
    from accelkit.host.launch import stopping
    from accelkit.host.runs import status

    store = _store()
    entries = [store.entry(store.find(run_id).name)] if run_id else store.entries()
    over = [entry for entry in entries if status.of(entry) not in status.ALIVE]
    done = stopping.clean(store, over)
    alive = len(entries) - len(over)
    what = f"removed what was left of {', '.join(done.swept)}" if done.swept else "nothing was left"
    render.note(f"{what} ({done.looked_at} runs looked at)" + (f"; {alive} still run" if alive else ""))
    if done.left:
        raise EngineError(
            f"no Docker engine answers, so containers of {len(done.left)} runs may be left",
            hint="when it is back: kit runs clean",
        )
