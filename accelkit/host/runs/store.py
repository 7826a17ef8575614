"""Where records lie: `.accelkit/runs/ID/record.json` under the folder where `kit run` was typed.

.accelkit/
.gitignore          ignores the whole folder, itself included
objects/SHA256      files of code that is not in git, by content
code/ID             recorded code while it runs again
runs/ID/
record.json     rewritten atomically: the old state or the new one, never a part
starting.json   who makes the run; only until there is a record
code.diff, code.json
exchange/       spec in; results, logs and metrics out
outputs/        the run's own output folder
"""

import contextlib
import dataclasses
import json
import shutil
import time
from pathlib import Path
from typing import Any, Final

from accelkit.contract import codec, names
from accelkit.contract.data import data
from accelkit.host import paths
from accelkit.host.errors import RecordError, RunNotFound
from accelkit.host.runs import ids, liveness
from accelkit.host.runs.record import RECORD_VERSION, Record, Supervisor

RECORD_FILE: Final = "record.json"
STARTING_FILE: Final = "starting.json"
EXCHANGE_FOLDER: Final = "exchange"
OUTPUTS_FOLDER: Final = "outputs"
LAST: Final = "last"
"""The word that stands for the newest run."""


@data
class Entry:
    """A run's folder: its record, or what is wrong with it."""

    run_id: str
    run_dir: Path
    created_at: float
    """Seconds since the epoch; from the ID where there is no record."""
    record: Record | None = None
    problem: str | None = None
    """Why `record` is None."""
    maker: Supervisor | None = None
    """Who makes a run that has no record yet; None when that is not known."""


class Store:
    """The records of one project."""

    def __init__(self, workdir: Path) -> None:
        """`workdir`: the folder where `kit` was typed; nothing is made yet."""
        self.workdir = workdir
        self.state_dir = paths.project_state(workdir)
        self.runs_dir = paths.project_runs(workdir)
        self.objects_dir = self.state_dir / "objects"
        self.laid_out_dir = self.state_dir / "code"

    def run_dir(self, run_id: str) -> Path:
        """Folder of a run, whether or not it is there."""
        return self.runs_dir / run_id

    def new_id(self) -> str:
        """An ID that no run of this project has."""
        return ids.new_id(self.runs_dir)

    def prepare(self, run_id: str) -> Path:
        """Make the folders of a new run and return its folder, so that code can be captured into it before there is a record.

        Raises RecordError when the run is already there, or the folders cannot be made.
        """
        run_dir = self.run_dir(run_id)
        try:
            self._make_state_dir()
            self.runs_dir.mkdir(exist_ok=True)
            run_dir.mkdir()
            codec.write(run_dir / STARTING_FILE, liveness.this_process())
            (run_dir / EXCHANGE_FOLDER / names.LOGS_FOLDER).mkdir(parents=True)
            (run_dir / OUTPUTS_FOLDER).mkdir()
        except FileExistsError as error:
            raise RecordError(f"{error.filename}: already there") from error
        except OSError as error:
            hint = "kit keeps its records in .accelkit of the working folder: run it where you may write"
            raise RecordError(f"{error.filename}: {error.strerror}", hint=hint) from error
        return run_dir

    def create(self, record: Record) -> Path:
        """Write a new run's record (its folders too, unless `prepare` made them) and return the run's folder."""
        run_dir = self.run_dir(record.run_id)
        if (run_dir / RECORD_FILE).exists():
            raise RecordError(f"run {record.run_id} already has a record")
        if not run_dir.is_dir():
            self.prepare(record.run_id)
        self.update(record)
        (run_dir / STARTING_FILE).unlink(missing_ok=True)
        return run_dir

    def update(self, record: Record) -> None:
        """Replace a run's record, atomically. Raises RecordError when the run's folder is gone or cannot be written."""
        path = self.run_dir(record.run_id) / RECORD_FILE
        try:
            codec.write(path, record, durable=True)
        except OSError as error:
            raise RecordError(f"{path}: {error.strerror}") from error

    def remove(self, run_id: str) -> None:
        """Remove a run's folder; it disappears from the list at once, whatever interrupts this."""
        gone = self.runs_dir / f".{run_id}"
        self.run_dir(run_id).rename(gone)
        shutil.rmtree(gone)

    def load(self, name: str) -> Record:
        """The record of the run with this ID, the beginning of one (or of its time or random part), or "last".

        Raises RunNotFound when there is none or when several fit (it names them), RecordError when the record is damaged.
        """
        return read_record(self.find(name))

    def find(self, name: str) -> Path:
        """The folder of the run that `name` stands for, as `load` reads it. Raises RunNotFound."""
        known = self._ids()
        if name == LAST:
            recorded = [entry for entry in self.entries() if (entry.run_dir / RECORD_FILE).exists()]
            if not recorded:
                raise RunNotFound(f"no run is recorded in {self.state_dir}", hint="kit run SCRIPT makes the first one")
            return recorded[0].run_dir
        matches = [i for i in known if i == name] or [
            i for i in known if name and (i.startswith(name) or any(part.startswith(name) for part in i.split("-")[1:]))
        ]
        if len(matches) == 1:
            return self.run_dir(matches[0])
        if matches:
            raise RunNotFound(f"{name}: {len(matches)} runs fit: {', '.join(matches)}", hint="type more of the ID")
        raise RunNotFound(f"{name}: no such run in {self.state_dir}", hint=_nearest(name, known))

    def entries(self) -> list[Entry]:
        """All runs, newest first; a damaged record is an entry with its problem."""
        entries = [self.entry(run_id) for run_id in self._ids()]
        return sorted(entries, key=lambda e: (e.created_at, e.run_id), reverse=True)

    def entry(self, run_id: str) -> Entry:
        """A run's folder, read tolerantly."""
        run_dir = self.run_dir(run_id)
        try:
            record = read_record(run_dir)
        except RecordError as error:
            made_at, maker = _time_of(run_id, run_dir), _maker(run_dir)
            return Entry(run_id=run_id, run_dir=run_dir, created_at=made_at, problem=error.message, maker=maker)
        return Entry(run_id=run_id, run_dir=run_dir, created_at=record.created_at, record=record)

    def _ids(self) -> list[str]:
        if not self.runs_dir.is_dir():
            return []
        return sorted(p.name for p in self.runs_dir.iterdir() if p.is_dir() and not p.name.startswith("."))

    def _make_state_dir(self) -> None:
        self.state_dir.mkdir(exist_ok=True)
        ignore = self.state_dir / ".gitignore"
        if not ignore.exists():
            codec.write_text(ignore, "*\n")


def _maker(run_dir: Path) -> Supervisor | None:
    try:
        return codec.read(Supervisor, run_dir / STARTING_FILE)
    except (OSError, codec.CodecError):
        return None


def read_record(run_dir: Path) -> Record:
    """The record in a run's folder, whose plan names the folder where it lies now. Raises RecordError, which starts with the path."""
    path = run_dir / RECORD_FILE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RecordError(f"{path}: not there (kit was killed before it was written)") from error
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}") from error
    except ValueError as error:  # not JSON, or not UTF-8
        raise RecordError(f"{path}: damaged: {error}") from error
    return _parse(path, data)


def _parse(path: Path, data: Any) -> Record:
    version = data.get("version") if isinstance(data, dict) else None
    if version != RECORD_VERSION:
        raise RecordError(f"{path}: a record of version {version!r}; this kit reads version {RECORD_VERSION}")
    try:
        record = codec.from_dict(Record, data)
    except codec.CodecError as error:
        raise RecordError(f"{path}: damaged: {error}") from error
    if record.run_id != path.parent.name:
        raise RecordError(f"{path}: damaged: it is the record of run {record.run_id}")
    return dataclasses.replace(record, plan=dataclasses.replace(record.plan, run_dir=str(path.parent)))


def _time_of(run_id: str, run_dir: Path) -> float:
    with contextlib.suppress(ValueError):
        parsed = time.strptime(run_id[:15] + " UTC", "%Y%m%d-%H%M%S %Z")
        import calendar

        return float(calendar.timegm(parsed))
    with contextlib.suppress(OSError):
        return run_dir.stat().st_mtime
    return 0.0


def _nearest(name: str, known: list[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"nearest: {', '.join(near)}" if near else "kit runs list shows what is there"
