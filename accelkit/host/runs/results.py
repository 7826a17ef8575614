"""What a run that has ended left behind: metrics, and digests of its outputs."""

import dataclasses
from pathlib import Path

from accelkit.contract import names
from accelkit.host import render
from accelkit.host.runs import capture, metrics
from accelkit.host.runs.record import Record
from accelkit.host.runs.store import EXCHANGE_FOLDER, OUTPUTS_FOLDER


def are_there(record: Record) -> bool:
    """Whether `add` will find anything."""
    run_dir = Path(record.plan.run_dir)
    beside = [Path(record.plan.workdir) / path for path in _declared(record)]
    has_outputs = any((run_dir / OUTPUTS_FOLDER).iterdir()) if (run_dir / OUTPUTS_FOLDER).is_dir() else False
    return has_outputs or _metrics(record).exists() or any(path.exists() for path in beside)


def add(record: Record) -> Record:
    """The record with metrics and digests; a file that cannot be read is left out and warned about."""
    run_dir = Path(record.plan.run_dir)
    outputs, unread = capture.digest_outputs(run_dir / OUTPUTS_FOLDER, ["."])
    spec = run_dir / EXCHANGE_FOLDER / names.SPEC_FILE  # its time is of the same clock as the outputs'
    since = spec.stat().st_mtime if spec.exists() else record.created_at
    beside, more = capture.digest_outputs(Path(record.plan.workdir), _declared(record), since)
    for text in (*unread, *more):
        render.warn(text)
    return dataclasses.replace(record, metrics=metrics.read(_metrics(record)), outputs=outputs, workdir_outputs=beside)


def _declared(record: Record) -> list[str]:
    found: list[str] = record.config["run.outputs"].value
    return found


def _metrics(record: Record) -> Path:
    return Path(record.plan.run_dir) / EXCHANGE_FOLDER / names.METRICS_FILE
