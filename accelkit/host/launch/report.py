"""The report of a failed run: the root cause first and whole, then everybody else in a line each, then where to look."""

import os
from collections.abc import Iterator
from pathlib import Path

from accelkit.contract import names
from accelkit.contract.results import RankResult
from accelkit.host.launch.outcome import describe, exchange_folder
from accelkit.host.launch.plan import LaunchPlan
from accelkit.host.runs.record import Outcome, Record


def first_failure(record: Record) -> str:
    """What the first rank that failed by an exception printed of it, between two lines; empty where there is none."""
    result = _first(record.outcome) if record.outcome else None
    if result is None or result.error is None:
        return ""
    head = f"--- {names.node_name(result.node)} rank{result.rank}: the first failure " + "-" * 40
    return "\n".join([head, result.error.traceback.rstrip(), "-" * 72])


def summary(record: Record) -> str:
    """The cause of a run that did not end well, then everybody else and where to look in a line each."""
    if record.outcome is None:
        return f"run {record.run_id} has not ended"
    return "\n".join(_lines(record.plan, record.outcome))


def _first(outcome: Outcome) -> RankResult | None:
    root = outcome.root_cause
    return next((r for r in outcome.ranks if root and r.rank == root.rank), None)


def _lines(plan: LaunchPlan, outcome: Outcome) -> Iterator[str]:
    root, result = outcome.root_cause, _first(outcome)
    if outcome.state == "interrupted":
        yield f"run {plan.run_id}: interrupted (exit code {outcome.exit_code})"
    else:
        yield f"run {plan.run_id}: {root.message if root else outcome.state}{_code(outcome)}"
        yield from _missing_module(plan, result)
        yield from _others(plan, outcome, result)
    yield f"  logs: {_short(exchange_folder(plan) / (names.rank_log_file(result.rank) if result else names.LOGS_FOLDER))}"


def _missing_module(plan: LaunchPlan, result: RankResult | None) -> Iterator[str]:
    """Where a module is to be installed that the script did not find."""
    if result is None or result.error is None or result.error.type != "ModuleNotFoundError":
        return
    if plan.container is None:
        yield f"  ranks run on {plan.python}: install it there"
    else:
        image = plan.container.image
        yield f"  it is not in the image {image.tag}: kit build {image.hardware} --requirements FILE puts it in"


def _others(plan: LaunchPlan, outcome: Outcome, first: RankResult | None) -> Iterator[str]:
    """Every other rank that did not end well, or had left before the first failure, in a line each."""
    for other in outcome.ranks:
        if other.cause != "ok" and other is not first:
            yield f"  rank {other.rank} on {names.node_name(other.node)} {_consequence(plan, other)}"
        elif other.cause == "ok" and first is not None and (first.lost_a_peer or other.ended_at < first.ended_at):
            before = max(0.0, first.ended_at - other.ended_at)
            yield f"  rank {other.rank} on {names.node_name(other.node)} had ended {before:.1f} s before it (exit code 0)"
    missing = plan.spec.world_size - len(outcome.ranks)
    if missing and plan.spec.world_size > 1:
        yield f"  {missing} of {plan.spec.world_size} ranks left no result"


def _code(outcome: Outcome) -> str:
    """The exit code, where the root cause's own words do not say it."""
    said = outcome.root_cause is not None and outcome.root_cause.cause not in ("timeout", "kit-error")
    return "" if said else f" (exit code {outcome.exit_code})"


def _consequence(plan: LaunchPlan, result: RankResult) -> str:
    words = describe(plan, result)
    return words if result.cause == "stopped" else f"{words}, after it"


def _short(path: Path) -> str:
    """Relative to the current folder where that is shorter."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)
