"""The ranks of one node: started together, watched by one selector loop, ended together.

Every rank (but one on a terminal) leads a session of its own, so that its whole group can be signalled; it dies with us
(parent-death signal); what it leaves behind is adopted (child subreaper) and killed. Each wait has a limit.
"""

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from accelkit.contract import codec, names
from accelkit.contract.results import Cause, RankError, RankResult
from accelkit.contract.spec import LaunchSpec
from accelkit.runtime import boot_env, kinship
from accelkit.runtime.boot_relay import Relay, leave, open_log

_ORPHAN_ROUND: Final = 0.02
"""Seconds between two looks for orphans; there are twenty at most, so that one that cannot be killed holds nobody up."""
_DRAIN: Final = 0.5
"""Seconds that pipes are still read after a rank's end; a grandchild may keep them open for ever."""
RANK_ENTRY: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rank_entry.py")


class Rank:
    """One rank's process."""

    def __init__(self, rank: int, local_rank: int, process: "subprocess.Popen[bytes]", *, leads: bool) -> None:
        """`process` was just started. `leads`: it leads a session and a group of its own."""
        self.rank = rank
        self.local_rank = local_rank
        self.process = process
        self._leads = leads
        self.started_at = time.time()
        self.relays: list[Relay] = []
        self.result: RankResult | None = None

    def signal(self, number: int) -> None:
        """Signal the rank alone, unless it has ended. Not through Popen, which would reap it: its end is `wait4`'s to see."""
        if self.process.returncode is None:
            os.kill(self.process.pid, number)

    def signal_group(self, number: int) -> None:
        """Signal the rank and all of its group; nothing happens when none is left. A rank on a terminal is signalled alone."""
        if not self._leads:
            self.signal(number)
            return
        try:
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            return


class Ranks:
    """All ranks of a node."""

    def __init__(self, spec: LaunchSpec, node: int) -> None:
        """Starts nothing yet; makes this process the one that orphans come to."""
        self._spec = spec
        self._node = node
        self._exchange = Path(spec.exchange_dir)
        self._ranks: list[Rank] = []
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._signals: list[int] = []
        self._told: int | None = None
        self._stopping = False
        self._stop_at: float | None = None
        self._kill_at: float | None = None
        self._oom_kills = boot_env.oom_kills()
        self._first: RankResult | None = None
        kinship.adopt_orphans()

    def start(self, environment: Callable[[int], dict[str, str]]) -> None:
        """Start every rank; `environment` gives that of a local rank."""
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for local in range(self._spec.procs_per_node):
            self._start_rank(local, environment(local))

    def deliver(self, number: int) -> None:
        """A signal to this node; called from a signal handler, which also wakes the loop."""
        self._signals.append(number)

    def wait(self) -> int:
        """Relay and watch until every rank is gone; return the node's exit code."""
        while any(rank.result is None for rank in self._ranks):
            self._take_signals()
            self._reap()
            self._check_deadlines()
            if any(rank.result is None for rank in self._ranks):
                self._pump(self._nearest())
        self._drain()
        self._kill_orphans()
        if self._told is not None:
            return 128 + self._told
        return self._first.exit_code if self._first else 0

    def _start_rank(self, local: int, env: dict[str, str]) -> None:
        rank = self._node * self._spec.procs_per_node + local
        mine = self._spec.interactive and rank == 0
        pipe = None if mine else subprocess.PIPE
        parent = os.getpid()
        program = self._spec.program
        process = subprocess.Popen(
            [sys.executable, RANK_ENTRY, program.kind, program.target, *program.args],
            cwd=self._spec.workdir,
            env=env,
            stdin=None if mine else subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            start_new_session=not mine,
            preexec_fn=lambda: _begin(parent),  # noqa: PLW1509  (we have no threads)
        )
        started = Rank(rank, local, process, leads=not mine)
        if process.stdout is not None and process.stderr is not None:
            log = open_log(self._exchange / names.rank_log_file(rank))
            prefix = f"[{names.node_name(self._node)} rank{rank}] ".encode()
            for stream, target in ((process.stdout, 1), (process.stderr, 2)):
                descriptor = os.dup(stream.fileno())
                os.set_blocking(descriptor, False)
                relay = Relay(descriptor, 1 if target == 1 else 2, prefix, log)
                started.relays.append(relay)
                self._selector.register(descriptor, selectors.EVENT_READ, (started, relay))
                stream.close()
        self._ranks.append(started)

    def _pump(self, timeout: float | None) -> None:
        for key, _ in self._selector.select(timeout):
            if key.fd == self._wake_read:
                self._clear_wakeup()
            else:
                rank, relay = key.data
                if not relay.pump():
                    self._forget(rank, relay)

    def _forget(self, rank: Rank, relay: Relay) -> None:
        self._selector.unregister(relay.pipe)
        rank.relays.remove(relay)
        relay.close()

    def _clear_wakeup(self) -> None:
        try:
            while os.read(self._wake_read, 512):
                pass
        except BlockingIOError:
            return

    def _take_signals(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            if number == signal.SIGUSR1:
                for rank in self._ranks:
                    rank.signal(signal.SIGUSR1)
            elif self._told is None:
                self._told = number
                self._stop()
            else:
                self._kill()

    def _reap(self) -> None:
        """Take the result of each rank that has ended, and the status of every orphan that came to us."""
        ours = {rank.process.pid: rank for rank in self._ranks if rank.result is None}
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in ours:
                ours[pid].process.returncode = os.waitstatus_to_exitcode(status)
                self._ended(ours[pid], status, usage.ru_maxrss * 1024)

    def _ended(self, rank: Rank, status: int, peak: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        error = self._error_of(rank.rank)
        cause = self._cause(code, error)
        rank.result = RankResult(
            rank=rank.rank,
            local_rank=rank.local_rank,
            node=self._node,
            pid=rank.process.pid,
            cause=cause,
            exit_code=128 - code if code < 0 else code,
            signal=signal.Signals(-code).name if code < 0 else None,
            started_at=rank.started_at,
            ended_at=time.time(),
            peak_memory=peak,
            memory_kills=0 if cause in ("ok", "oom", "stopped") else self._new_oom_kills(),
            error=error,
        )
        rank.signal_group(signal.SIGKILL)
        leave(self._exchange / names.rank_file(rank.rank), rank.result)
        if rank.result.cause not in ("ok", "stopped"):
            self._failed(rank.result)

    def _failed(self, result: RankResult) -> None:
        if self._first is None or result.precedence < self._first.precedence:
            self._first = result
        if self._stop_at is None and not self._stopping:
            self._stop_at = time.monotonic() + self._spec.failure_grace

    def _cause(self, code: int, error: RankError | None) -> Cause:
        """Why a rank ended with `code` (negative: by that signal)."""
        if code == 0:
            return "ok"
        if error is not None and code > 0:
            return "error"
        if code == -signal.SIGKILL and self._new_oom_kills():
            return "oom"
        if self._stopping:
            return "stopped"
        return "signal" if code < 0 else "exit"

    def _new_oom_kills(self) -> int:
        """How many processes of this node the kernel has killed for memory since we were last asked."""
        before, self._oom_kills = self._oom_kills, boot_env.oom_kills()
        return max(0, self._oom_kills - before)

    def _error_of(self, rank: int) -> RankError | None:
        try:
            return codec.read(RankError, self._exchange / names.rank_error_file(rank))
        except (FileNotFoundError, codec.CodecError):
            return None

    def _stop(self) -> None:
        """SIGTERM to every group; SIGKILL follows."""
        self._stopping = True
        self._stop_at = None
        for rank in self._ranks:
            if rank.result is None:
                rank.signal_group(signal.SIGTERM)
        self._kill_at = time.monotonic() + self._spec.stop_grace

    def _kill(self) -> None:
        self._stopping = True
        self._kill_at = time.monotonic() + self._spec.stop_grace
        for rank in self._ranks:
            if rank.result is None:
                rank.signal_group(signal.SIGKILL)

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        if self._stop_at is not None and now >= self._stop_at:
            self._stop()
        if self._kill_at is not None and now >= self._kill_at:
            self._kill()

    def _nearest(self) -> float | None:
        times = [t for t in (self._stop_at, self._kill_at) if t is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _drain(self) -> None:
        """What is still in the pipes, for a moment at most."""
        deadline = time.monotonic() + _DRAIN
        while any(rank.relays for rank in self._ranks) and time.monotonic() < deadline:
            self._pump(max(0.0, deadline - time.monotonic()))
        for rank in self._ranks:
            for relay in list(rank.relays):
                self._forget(rank, relay)

    def _kill_orphans(self) -> None:
        """Whatever double-forked away from a rank has come to us: kill and reap it, a few rounds deep."""
        for _ in range(20):
            children = _children()
            if not children:
                return
            for pid in children:
                try:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, os.WNOHANG)
                except (ProcessLookupError, ChildProcessError):
                    continue
            time.sleep(_ORPHAN_ROUND)


def _children() -> list[int]:
    """Pids of our living children."""
    try:
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    except OSError:
        return []
    return [int(pid) for pid in text.split()]


def _begin(parent: int) -> None:
    """In the new rank: do not outlive boot, nor die of a signal that comes before it can print its stacks."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    kinship.die_with(parent)
