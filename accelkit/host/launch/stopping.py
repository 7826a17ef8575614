"""Stopping and cleaning runs, also those whose `kit` was killed."""

import dataclasses
import os
import signal
import time
from typing import Final

from accelkit.contract import names
from accelkit.host.engine import client as engine
from accelkit.host.errors import EngineError
from accelkit.host.launch import outcome, secrets
from accelkit.host.runs import liveness
from accelkit.host.runs.record import Outcome, Record
from accelkit.host.runs.store import Entry, Store

PATIENCE: Final = 12.0
"""Seconds that a living supervisor gets to stop its run; it needs at most ten."""
_POLL: Final = 0.05


def stop(store: Store, record: Record, patience: float = PATIENCE) -> Record:
    """End a run: through its supervisor where that lives, else by hand. Returns the record with its outcome."""
    supervisor = record.supervisor
    if supervisor is not None and liveness.is_alive(supervisor):
        os.kill(supervisor.pid, signal.SIGTERM)
        deadline = time.monotonic() + patience
        while liveness.is_alive(supervisor) and time.monotonic() < deadline:
            time.sleep(_POLL)
        if liveness.is_alive(supervisor):
            os.kill(supervisor.pid, signal.SIGKILL)
    sweep(record.run_id, with_engine=record.plan.backend == "docker")
    return _finalise(store, store.load(record.run_id))


def sweep(run_id: str, *, with_engine: bool) -> None:
    """Remove whatever a run left: processes, secrets, and with an engine its containers, networks and volumes."""
    if with_engine:
        with engine.engine_errors("removing what the run left"):
            engine.remove_all(engine.connect(), run_id)
    _end_processes(run_id)
    secrets.remove(run_id)


def _end_processes(run_id: str) -> None:
    """SIGTERM to all of them, SIGKILL to what is left."""
    for number, wait in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 2.0)):
        found = liveness.processes_of(run_id)
        for pid in found:
            _signal(pid, number)
        deadline = time.monotonic() + wait
        while liveness.processes_of(run_id) and time.monotonic() < deadline:
            time.sleep(_POLL)


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


def clean(store: Store, entries: list[Entry], alive: set[str]) -> list[str]:
    """Sweep every run that is not in `alive`, and what is labelled with a run of this project that has no folder. Returns the IDs swept."""
    try:
        client = engine.connect()
    except EngineError:
        client = None
    swept = []
    for entry in entries:
        if entry.run_id in alive:
            continue
        sweep(entry.run_id, with_engine=client is not None)
        if entry.record is not None:
            _finalise(store, entry.record)
        swept.append(entry.run_id)
    return swept
