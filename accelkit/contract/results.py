"""What comes back over the wall: a result a rank, a report a node."""

from dataclasses import field
from typing import Final, Literal

from accelkit.contract.data import data

RESULT_VERSION: Final = 1

_PEER_GONE: Final = (
    "Connection reset by peer",
    "Connection closed by peer",
    "remote process exited or there was a network error",
    "Broken pipe",
)
"""What gloo, NCCL and torch's store say when the other end is gone."""

Cause = Literal["ok", "error", "exit", "signal", "oom", "stopped"]
"""How a rank ended.

ok: exit code 0. error: its script raised. exit: a non-zero exit code without an exception. signal: killed from outside.
oom: killed by the kernel because the container's memory limit was reached. stopped: ended by kit after another rank's failure,
a time-out or an interruption (a consequence, never a root cause).
"""


@data
class RankError:
    """An exception that ended a rank's script."""

    type: str
    """Qualified name of the exception's class."""
    message: str
    traceback: str
    """The text that Python prints, frames of kit itself left out."""
    file: str | None = None
    line: int | None = None
    """Innermost frame of the user's own code where there is one, else the innermost frame."""
    time: float = 0.0
    """Seconds since the epoch when it reached the top of the script."""


@data
class RankResult:
    """How one rank ended; written by `boot`, atomically."""

    version: int = RESULT_VERSION
    rank: int
    local_rank: int
    node: int
    pid: int
    cause: Cause
    exit_code: int
    """As a shell would see it: 128 + n for signal n."""
    signal: str | None = None
    """Name of the signal that killed it, for example "SIGKILL"."""
    started_at: float
    ended_at: float
    """Seconds since the epoch. With `error`, `error.time` is the earlier and truer time of failure."""
    peak_memory: int = 0
    """Bytes: the largest resident set of the process."""
    memory_kills: int = 0
    """How many processes of the node the kernel had killed for memory when the rank failed, a rank itself aside (a loader's worker)."""
    error: RankError | None = None

    @property
    def failed_at(self) -> float:
        """When it failed, as well as is known: an exception's own time, else the end of the process."""
        return self.error.time if self.error else self.ended_at

    @property
    def lost_a_peer(self) -> bool:
        """Whether it failed because another rank's connection went away: a consequence, though its clock may say it was first.

        The kernel closes a dying rank's connections before anybody can note the time of its death.
        """
        return self.error is not None and any(words in self.error.message for words in _PEER_GONE)

    @property
    def precedence(self) -> tuple[bool, float]:
        """The least of these among all failures is the root cause."""
        return self.lost_a_peer, self.failed_at


@data
class NodeReport:
    """What a node found when it started and how it ended; rewritten by `boot` at each change of `state`."""

    version: int = RESULT_VERSION
    node: int
    state: Literal["started", "running", "ended"]
    """started: boot is up; running: all ranks of the node were started; ended: all are gone."""
    hostname: str
    pid: int
    python: str
    packages: dict[str, str] = field(default_factory=dict)
    """Installed distributions, name to version."""
    cores: int
    """Cores this node may use: the least of affinity, CFS quota and Slurm's cpus-per-task, at least 1."""
    threads: int
    """Threads a rank."""
    interface: str | None = None
    """Network interface towards node 0; None with one node."""
    address: str | None = None
    memory_limit: int | None = None
    """Bytes, of the node's cgroup; None without a limit."""
    shm_size: int | None = None
    """Bytes of /dev/shm."""
    started_at: float
    ended_at: float | None = None
    exit_code: int | None = None
    """Of the rank that failed first on this node, else 0; None while it runs."""
