"""Ranks in containers of one engine: Compose places the nodes, the SDK follows and watches them."""

import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from accelkit.contract import names
from accelkit.host import process
from accelkit.host.engine import client as engine
from accelkit.host.errors import EngineError
from accelkit.host.launch import compose, planning
from accelkit.host.launch.backends import base
from accelkit.host.launch.events import EngineLost, EventQueue, Line, NodeExited
from accelkit.host.launch.plan import LaunchPlan

if TYPE_CHECKING:
    from collections.abc import Callable

    from docker.models.containers import Container

KILL_AFTER: Final = 137
"""Exit code of a container that was killed outright."""


class DockerBackend:
    """A container a node, labelled with the run's ID."""

    def __init__(self, plan: LaunchPlan) -> None:
        """For one plan; connects when it starts."""
        if plan.container is None:
            raise ValueError("the docker backend needs a plan with containers")
        self._plan = plan
        self._container_plan = plan.container
        self._up: process.Child | None = None
        self._containers: list[Container] = []

    def artefacts(self) -> dict[str, str]:
        """The Compose file, and the passwd file that the containers see."""
        uid, gid = (int(part) for part in self._container_plan.user.split(":"))
        user = self._container_plan.env.get("USER", "user")
        return {
            compose.FILE: compose.render(self._plan),
            planning.PASSWD: planning.passwd_text(uid, gid, user),
        }

    def start(self, events: EventQueue) -> None:
        """`docker compose up --detach`, then a thread that follows and one that awaits each container."""
        self._compose_up()
        with engine.engine_errors("looking for the run's containers"):
            found = {c.labels[names.LABEL_NODE]: c for c in engine.find_containers(engine.connect(), self._plan.run_id)}
        for node in self._plan.nodes:
            container = found[node.name]
            self._containers.append(container)
            follower = base.thread(_follow, container, events)
            base.thread(_await, node.index, container, follower, events)

    def stop(self) -> None:
        """SIGTERM to boot in every container; Compose that is still starting them is stopped too."""
        self._end_compose()
        self._each(lambda c: c.kill(signal="SIGTERM"))

    def dump_stacks(self) -> None:
        """SIGUSR1 to boot in every container."""
        self._each(lambda c: c.kill(signal="SIGUSR1"))

    def kill(self) -> None:
        """SIGKILL to every container."""
        self._end_compose()
        self._each(lambda c: c.kill())

    def clean(self) -> None:
        """Remove the run's containers, network and volumes, by label."""
        self._end_compose()
        with engine.engine_errors("removing the run's containers and network"):
            engine.remove_all(engine.connect(), self._plan.run_id)

    def interactive(self) -> int:
        """`docker compose run` of node 0 with our terminal."""
        return process.attach([*self._compose("run", "--rm", "--no-deps"), self._plan.nodes[0].name])

    def shell(self, argv: list[str]) -> int:
        """`argv` in a container as node 0's, with our terminal, instead of its ranks."""
        head, *rest = argv
        service = self._plan.nodes[0].name
        return process.attach([*self._compose("run", "--rm", "--no-deps", "--entrypoint", head), service, *rest])

    def _compose(self, *words: str) -> list[str]:
        file = Path(self._plan.run_dir) / compose.FILE
        return ["docker", "compose", "--project-name", compose.project(self._plan.run_id), "--file", str(file), *words]

    def _compose_up(self) -> None:
        self._up = process.Child(self._compose("up", "--detach", "--no-build", "--quiet-pull"))
        output = self._up.stderr.read() + self._up.stdout.read()
        code = self._up.wait()
        self._up = None
        if code:
            raise EngineError(
                f"docker compose up failed: {last_words(output.decode(errors='replace'))}",
                hint=f"the file it was given: {Path(self._plan.run_dir) / compose.FILE}",
            )

    def _end_compose(self) -> None:
        child = self._up
        if child is not None:
            child.kill_group()

    def _each(self, act: "Callable[[Container], Any]") -> None:
        """Do `act` to every container at once; one that is gone, and an engine that is gone, are no errors here."""

        def quietly(container: "Container") -> None:
            with suppress(EngineError), engine.engine_errors("signalling a container"):
                act(container)

        for container in self._containers:
            base.thread(quietly, container)


def last_words(text: str) -> str:
    """The line of an engine's output that tells what went wrong: its last one that is not blank."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def _follow(container: "Container", events: EventQueue) -> None:
    """Every line from the container's start to its end, by stream. An engine that is lost is reported by `_await`."""
    rest: dict[str, bytes] = {"stdout": b"", "stderr": b""}
    with suppress(EngineError), engine.engine_errors("following a container"):
        for pair in container.attach(stdout=True, stderr=True, stream=True, logs=True, demux=True):
            for name, data in zip(("stdout", "stderr"), pair, strict=True):
                *lines, rest[name] = (rest[name] + (data or b"")).split(b"\n")
                for line in lines:
                    events.put(Line("stdout" if name == "stdout" else "stderr", line + b"\n"))
    for name, data in rest.items():
        if data:
            events.put(Line("stdout" if name == "stdout" else "stderr", data + b"\n"))


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
    follower.join(timeout=2.0)
    events.put(NodeExited(node, code, oom=oom))
