"""Printing the logs of a run, to their end as they are or to the end of the run."""

import time
from pathlib import Path
from typing import Final

from accelkit.contract import names
from accelkit.host import render
from accelkit.host.runs import status
from accelkit.host.runs.record import Record
from accelkit.host.runs.store import EXCHANGE_FOLDER, Store

_POLL: Final = 0.2
_CHUNK: Final = 1 << 20
"""Bytes of a log that are read at once."""


def print_logs(store: Store, record: Record, rank: int | None, *, until_end: bool) -> Record:
    """Print all ranks' logs, each line with its prefix, or one rank's as it is. Returns the record as it was at the end."""
    spec = record.plan.spec
    ranks = range(spec.world_size) if rank is None else [rank]
    folder = Path(record.plan.run_dir) / EXCHANGE_FOLDER
    tails = [
        _Tail(
            folder / names.rank_log_file(r),
            "" if rank is not None else f"[{names.node_name(r // spec.procs_per_node)} rank{r}] ",
        )
        for r in ranks
    ]
    while True:
        ended = status.of(store.entry(record.run_id)) not in ("running", "orphaned")
        for tail in tails:
            tail.print_new(last=ended or not until_end)
        if ended or not until_end:
            return store.load(record.run_id)
        time.sleep(_POLL)


class _Tail:
    """One log, read on from where it was."""

    def __init__(self, path: Path, prefix: str) -> None:
        self._path = path
        self._prefix = prefix
        self._read = 0
        self._rest = b""

    def print_new(self, *, last: bool) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            while data := file.read(_CHUNK):
                self._read += len(data)
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    self._print(line)
        if last and self._rest:
            self._print(self._rest)
            self._rest = b""

    def _print(self, line: bytes) -> None:
        """A whole line; only then do its bytes make whole characters."""
        text = line.decode(errors="replace")
        render.out(self._prefix + text.rstrip("\r").rpartition("\r")[2] if self._prefix else text)
