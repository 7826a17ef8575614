"""Ranks as processes of this machine, on the interpreter that runs kit: no container, a `boot` a node."""

import os
import signal
import threading
from pathlib import Path
from typing import IO, Literal

from accelkit.contract import names
from accelkit.host import process
from accelkit.host.launch import environment
from accelkit.host.launch.backends import base
from accelkit.host.launch.events import EventQueue, Line, NodeExited
from accelkit.host.launch.plan import LaunchPlan, NodePlan
from accelkit.host.launch.stage import BOOT


class LocalBackend:
    """A process group a node. `boot` ends its ranks on SIGTERM; the group is killed where it does not."""

    def __init__(self, plan: LaunchPlan) -> None:
        """For one plan; starts nothing."""
        self._plan = plan
        self._nodes: dict[int, process.Child] = {}

    def artefacts(self) -> dict[str, str]:
        """None: the launch spec alone says it all."""
        return {}

    def start(self, events: EventQueue) -> None:
        """Start every node's boot and a thread that follows each of its streams."""
        for node in self._plan.nodes:
            child = process.Child(self._argv(node), cwd=Path(self._plan.workdir), env=self._env(node))
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
        """Nothing of a node's process group stays."""
        self.kill()

    def interactive(self) -> int:
        """Node 0 on our own terminal."""
        node = self._plan.nodes[0]
        return process.attach(self._argv(node), cwd=Path(self._plan.workdir), env=self._env(node))

    def _signal(self, number: int) -> None:
        for child in self._nodes.values():
            child.signal(number)

    def _argv(self, node: NodePlan) -> list[str]:
        boot = os.path.join(self._plan.runtime_dir, BOOT)
        spec = os.path.join(self._plan.spec.exchange_dir, names.SPEC_FILE)
        return [self._plan.python or "python3", boot, spec, "--node", str(node.index)]

    def _env(self, node: NodePlan) -> dict[str, str]:
        env = environment.inherited(environment.current())
        path = [self._plan.runtime_dir, *filter(None, [env.get("PYTHONPATH")])]
        return {**env, "PYTHONPATH": os.pathsep.join(path), names.ENV_NODE_NAME: node.name,
                names.ENV_RUN_ID: self._plan.run_id}  # fmt: skip


def _follow(stream: IO[bytes], name: Literal["stdout", "stderr"], events: EventQueue) -> None:
    for line in stream:
        events.put(Line(name, line))


def _await(node: int, child: process.Child, readers: list[threading.Thread], events: EventQueue) -> None:
    """Report the end of a node after its last line; a grandchild that keeps the pipe open holds it up for a second at most."""
    code = child.wait() or 0
    for reader in readers:
        reader.join(timeout=1.0)
    events.put(NodeExited(node, 128 - code if code < 0 else code))
