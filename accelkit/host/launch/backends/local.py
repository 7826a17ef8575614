"""Ranks as processes of this machine, on the interpreter that runs kit: no container, a `boot` a node."""

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, Literal

from accelkit.contract import names
from accelkit.host import process
from accelkit.host.launch import early
from accelkit.host.launch.backends import base
from accelkit.host.launch.early import EarlyNodes
from accelkit.host.launch.events import EventQueue, Line, NodeExited
from accelkit.host.launch.pieces import Pieces
from accelkit.host.launch.plan import LaunchPlan, NodePlan
from accelkit.host.runs import liveness

READ: Final = 1 << 16
KILLED_GRACE: Final = 1.0
"""Seconds until a killed boot is gone."""


class LocalBackend:
    """A process group a node. `boot` ends its ranks on SIGTERM; the group is killed where it does not."""

    def __init__(self, plan: LaunchPlan, early: EarlyNodes | None = None) -> None:
        """For one plan; starts nothing. `early`: nodes of this plan that are up already and wait for their spec."""
        self._plan = plan
        self._early = early
        self._spec = os.path.join(plan.spec.exchange_dir, names.SPEC_FILE)
        self._nodes: dict[int, process.Child] = {}

    def artefacts(self) -> dict[str, str]:
        """None: the launch spec alone says it all."""
        return {}

    def start(self, events: EventQueue) -> None:
        """Start every node's boot and a thread that follows each of its streams."""
        for node in self._plan.nodes:
            child = self._early.take(node.index, self._spec) if self._early else self._start(node)
            self._nodes[node.index] = child
            readers = [
                base.thread(_follow, child.stdout, "stdout", events),
                base.thread(_follow, child.stderr, "stderr", events),
            ]
            base.thread(_await, node.index, child, readers, events)

    def stop(self) -> None:
        """SIGTERM to every boot."""
        self._signal(signal.SIGTERM)

    def dump_stacks(self) -> None:
        """SIGUSR1 to every boot, which hands it to its ranks."""
        self._signal(signal.SIGUSR1)

    def kill(self) -> None:
        """SIGKILL to every boot; its ranks die with it (parent-death signal)."""
        for child in self._nodes.values():
            child.kill_group()

    def clean(self) -> None:
        """Nothing of a node stays: its group, and where boot was killed (else it ends what its ranks left) whatever has the run's ID."""
        killed = any((child.poll() or 0) < 0 or child.poll() is None for child in self._nodes.values())
        self.kill()
        for child in self._nodes.values():
            child.wait(KILLED_GRACE)
        if killed or not self._nodes:
            for pid in liveness.processes_of(self._plan.run_id):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def interactive(self) -> tuple[int, process.EndedBy]:
        """Node 0 on our own terminal."""
        node = self._plan.nodes[0]
        return process.attach(
            self._argv(node), cwd=Path(self._plan.workdir), env=self._env(node), timeout=self._plan.timeout
        )

    def _signal(self, number: int) -> None:
        for child in self._nodes.values():
            child.signal(number)

    def _start(self, node: NodePlan) -> process.Child:
        return process.Child(self._argv(node), cwd=Path(self._plan.workdir), env=self._env(node))

    def _argv(self, node: NodePlan) -> list[str]:
        return early.command(self._plan.python or "python3", self._plan.runtime_dir, self._spec, node.index)

    def _env(self, node: NodePlan) -> dict[str, str]:
        return early.variables(self._plan.runtime_dir, self._plan.run_id, node.index)


def _follow(stream: IO[bytes], name: Literal["stdout", "stderr"], events: EventQueue) -> None:
    pieces = Pieces()
    while data := os.read(stream.fileno(), READ):
        for piece in pieces.cut(data):
            events.put(Line(name, piece))
    for piece in pieces.last():
        events.put(Line(name, piece))


def _await(node: int, child: process.Child, readers: list[threading.Thread], events: EventQueue) -> None:
    """Report the end of a node after its last line; a grandchild that keeps the pipe open holds it up for a second at most."""
    code = child.wait() or 0
    for reader in readers:
        events.last_lines(reader, 1.0)
    events.put(NodeExited(node, 128 - code if code < 0 else code))
