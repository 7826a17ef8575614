"""What a run is doing now: its record, corrected by what still lives."""

from typing import Final

from accelkit.host.engine import client as engine
from accelkit.host.errors import EngineError
from accelkit.host.runs import liveness
from accelkit.host.runs.record import Record
from accelkit.host.runs.store import Entry


def of(entry: Entry) -> str:
    """One word.

    ok, failed, timeout, interrupted, stopped, kit-error: ended. starting: its kit lives and has not recorded it yet. running: its
    supervisor lives. elsewhere: it was started on another machine, from which alone its end can be seen. orphaned: its supervisor is
    gone, some of the run lives. lost: nothing of it lives, and nobody wrote its end. damaged: the record cannot be read.
    """
    record = entry.record
    if record is not None and record.outcome is not None:
        return record.outcome.state
    watcher = entry.maker if record is None else record.supervisor
    if watcher is not None and not liveness.is_here(watcher):
        return "elsewhere"
    if watcher is not None and liveness.is_alive(watcher):
        return "starting" if record is None else "running"
    if record is None:
        return "damaged"
    return "orphaned" if is_living(record) else "lost"


ALIVE: Final = ("starting", "running", "elsewhere")
"""States of runs that somebody watches: nobody else may end them unasked."""


def is_living(record: Record) -> bool:
    """Whether any process or container of the run still lives."""
    if liveness.processes_of(record.run_id):
        return True
    if record.plan.backend != "docker":
        return False
    try:
        found = engine.find_containers(engine.connect(), record.run_id)
    except EngineError:
        return False
    return any(container.status in ("running", "created", "restarting", "paused") for container in found)
