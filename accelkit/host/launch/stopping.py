"""Stopping and cleaning runs, also those whose `kit` was killed."""

import dataclasses
import os
import signal
import time
from typing import Final

from accelkit.contract import names
from accelkit.contract.data import data
from accelkit.host.engine import client as engine
from accelkit.host.errors import EngineError, RunElsewhere
from accelkit.host.launch import compose, outcome, secrets
from accelkit.host.runs import laid_out, liveness
from accelkit.host.runs.record import Outcome, Record
from accelkit.host.runs.store import Entry, Store

PATIENCE: Final = 12.0
"""Seconds that a living supervisor gets to stop its run; it needs at most ten."""
_POLL: Final = 0.05


def stop(store: Store, record: Record, patience: float = PATIENCE) -> Record:
    """End a run: through its supervisor where that lives, else by hand. Returns the record with its outcome.

    Raises RunElsewhere for a run of another machine, and EngineError when the engine cannot remove what it left; the rest is gone then.
    """
    supervisor = record.supervisor
    if supervisor is not None and not liveness.is_here(supervisor):
        raise RunElsewhere(
            f"run {record.run_id} was started on {supervisor.host}", hint=f"there: kit runs stop {record.run_id}"
        )
    if supervisor is not None and liveness.is_alive(supervisor):
        os.kill(supervisor.pid, signal.SIGTERM)
        deadline = time.monotonic() + patience
        while liveness.is_alive(supervisor) and time.monotonic() < deadline:
            time.sleep(_POLL)
        if liveness.is_alive(supervisor):
            os.kill(supervisor.pid, signal.SIGKILL)
    sweep(record.run_id, with_engine=uses_engine(record))
    return _finalise(store, store.load(record.run_id))


def sweep(run_id: str, *, with_engine: bool) -> bool:
    """Remove what a run left: processes, secrets, and with an engine containers, networks and volumes. Whether there was anything."""
    found = _end_processes(run_id)
    found = secrets.remove(run_id) or found
    if with_engine:
        with engine.engine_errors("removing what the run left"):
            found = engine.remove_all(engine.connect(), run_id) or found
    return found


def uses_engine(record: Record) -> bool:
    """Whether the run's nodes are containers."""
    return record.plan.backend == "docker"


def had_containers(entry: Entry) -> bool:
    """As `uses_engine`, also without a record: no container comes to be before its Compose file lies in the run's folder."""
    return uses_engine(entry.record) if entry.record is not None else (entry.run_dir / compose.FILE).exists()


def _may_have_containers(entry: Entry) -> bool:
    """Whether containers may be left: nobody saw to the run's end, or it ended because the engine failed."""
    over = entry.record.outcome if entry.record is not None else None
    return had_containers(entry) and (over is None or over.state == "kit-error")


def _end_processes(run_id: str) -> bool:
    """SIGTERM to all of them, SIGKILL to what is left. Whether there were any."""
    found_any = False
    for number, wait in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 2.0)):
        found = liveness.processes_of(run_id)
        found_any = found_any or bool(found)
        for pid in found:
            _signal(pid, number)
        deadline = time.monotonic() + wait
        while liveness.processes_of(run_id) and time.monotonic() < deadline:
            time.sleep(_POLL)
    return found_any


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _finalise(store: Store, record: Record) -> Record:
    """Write the end of a run that nobody else wrote down."""
    if record.outcome is not None:
        return record
    ranks, nodes, _ = outcome.collect(record.plan)
    ended = Outcome(
        exit_code=names.EXIT_TERMINATED,
        state="stopped",
        started_at=None,
        ended_at=time.time(),
        ranks=ranks,
        nodes=nodes,
    )
    record = dataclasses.replace(record, state="ended", outcome=ended)
    store.update(record)
    return record


@data
class Cleaned:
    """What `clean` did, run IDs each."""

    looked_at: int
    swept: tuple[str, ...]
    """Something was left of these."""
    left: tuple[str, ...]
    """Containers may be left of these: there is no engine to ask."""
    laid_out: int
    """Folders of recorded code that were removed."""


def clean(store: Store, entries: list[Entry]) -> Cleaned:
    """Remove what is left of `entries`, and recorded code that a killed `kit reproduce` had laid out."""
    try:
        engine.connect()
        has_engine = True
    except EngineError:
        has_engine = False
    swept, left = [], []
    for entry in entries:
        if sweep(entry.run_id, with_engine=has_engine):
            swept.append(entry.run_id)
        if not has_engine and _may_have_containers(entry):
            left.append(entry.run_id)
        elif entry.record is not None:
            _finalise(store, entry.record)
    return Cleaned(
        looked_at=len(entries), swept=tuple(swept), left=tuple(left), laid_out=laid_out.remove_abandoned(store)
    )
