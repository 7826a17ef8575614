"""Which processes of a run still live: by pid and start time, or by the run's ID in their environment."""

import os
import socket
from pathlib import Path

from accelkit.contract import names
from accelkit.host.runs.record import Supervisor

_PROC = Path("/proc")


def start_ticks(pid: int) -> int | None:
    """Start time of a living process in clock ticks since boot (0 where there is no /proc); None when it is gone or a zombie."""
    if not _PROC.is_dir():
        return 0 if _answers(pid) else None
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def this_process() -> Supervisor:
    """The identity of the calling process, for `Record.supervisor`."""
    pid = os.getpid()
    return Supervisor(pid=pid, start_ticks=start_ticks(pid) or 0, host=socket.gethostname(), boot_id=_boot_id())


def is_here(supervisor: Supervisor) -> bool:
    """Whether it ran on this machine; another machine's processes cannot be seen from here."""
    return supervisor.host == socket.gethostname()


def is_alive(supervisor: Supervisor) -> bool:
    """Whether exactly that process still lives on this machine (False for one of another machine, or of an earlier boot)."""
    if not is_here(supervisor) or supervisor.boot_id != _boot_id():
        return False
    return start_ticks(supervisor.pid) == supervisor.start_ticks


def processes_of(run_id: str) -> list[int]:
    """Pids on this machine that carry the run's ID in their environment, oldest first: `boot`, its ranks and what these started.

    Ours and those of other users, whose environment cannot be read, are left out.
    """
    marker = f"{names.ENV_RUN_ID}={run_id}".encode()
    found = []
    for entry in _PROC.glob("[0-9]*"):
        pid = int(entry.name)
        if pid != os.getpid() and marker in _environment(entry) and (ticks := start_ticks(pid)) is not None:
            found.append((ticks, pid))
    return [pid for _, pid in sorted(found)]


def _environment(entry: Path) -> list[bytes]:
    try:
        return (entry / "environ").read_bytes().split(b"\0")
    except OSError:  # gone meanwhile, or another user's
        return []


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _boot_id() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
