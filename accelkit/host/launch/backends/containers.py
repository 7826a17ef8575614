"""The containers of one run through the engine's SDK: started, followed, awaited, signalled, removed."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal

from accelkit.contract import names
from accelkit.host.engine import client as engine
from accelkit.host.errors import EngineError
from accelkit.host.launch.backends import base
from accelkit.host.launch.events import EngineLost, EventQueue, Line, NodeExited
from accelkit.host.launch.pieces import Pieces
from accelkit.host.launch.plan import NodePlan

if TYPE_CHECKING:
    from docker.models.containers import Container


PATIENCE: Final = 180
"""Seconds for one answer: an engine that builds images beside us may take a minute to remove a container."""


class Containers:
    """Everything of the engine that carries this run's label. Raises EngineUnavailable where there is no engine."""

    def __init__(self, run_id: str) -> None:
        """Connect; nothing is looked for yet."""
        self._run_id = run_id
        self._client = engine.connect(PATIENCE)
        self._started: list[Container] = []

    def start(self, nodes: Sequence[NodePlan], events: EventQueue) -> None:
        """Start the nodes' containers, which are there already, all at once; a thread follows and one awaits each.

        Raises EngineError when one cannot be started.
        """
        with engine.engine_errors("looking for the run's containers"):
            found = {c.labels[names.LABEL_NODE]: c for c in engine.find_containers(self._client, self._run_id)}
        containers = [found[node.name] for node in nodes]
        with ThreadPoolExecutor(len(nodes)) as pool:
            for done in [pool.submit(_start, c, node.name) for c, node in zip(containers, nodes, strict=True)]:
                done.result()
        for container, node in zip(containers, nodes, strict=True):
            self._started.append(container)
            follower = base.thread(_follow, container, events)
            base.thread(_await, node.index, container, follower, events)

    def signal(self, name: str) -> None:
        """Send a signal to every container at once; one that is gone, and an engine that is gone, are no errors here."""
        self._each(lambda c: c.kill(signal=name))

    def remove(self) -> None:
        """Remove the run's containers, network and volumes. Raises EngineError when the engine cannot."""
        with engine.engine_errors("removing the run's containers and network"):
            engine.remove_all(self._client, self._run_id)

    def _each(self, act: "Callable[[Container], Any]") -> None:
        def quietly(container: "Container") -> None:
            with suppress(EngineError), engine.engine_errors("signalling a container"):
                act(container)

        for container in self._started:
            base.thread(quietly, container)


def _start(container: "Container", node: str) -> None:
    with engine.engine_errors(f"starting {node}"):
        container.start()


def _follow(container: "Container", events: EventQueue) -> None:
    """Every line from the container's start to its end, by stream. An engine that is lost is reported by `_await`."""
    both: tuple[Literal["stdout", "stderr"], ...] = ("stdout", "stderr")
    streams = {name: Pieces() for name in both}
    with suppress(EngineError), engine.engine_errors("following a container"):
        for pair in container.attach(stdout=True, stderr=True, stream=True, logs=True, demux=True):
            for name, data in zip(both, pair, strict=True):
                for piece in streams[name].cut(data or b""):
                    events.put(Line(name, piece))
    for name in both:
        for piece in streams[name].last():
            events.put(Line(name, piece))


def _await(node: int, container: "Container", follower: threading.Thread, events: EventQueue) -> None:
    """Report the end of a container after its last line, or that the engine is lost."""
    try:
        with engine.engine_errors(f"waiting for {names.node_name(node)}"):
            code = int(container.wait(timeout=None)["StatusCode"])
            container.reload()
            oom = bool(container.attrs["State"].get("OOMKilled"))
    except EngineError as error:
        events.put(EngineLost(error.message))
        return
    events.last_lines(follower, 2.0)
    events.put(NodeExited(node, code, oom=oom))
