"""Ranks in containers of one engine: Compose places the nodes, the SDK starts and watches them.

The SDK takes a while to import, so it is imported while Compose works.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from accelkit.host import process
from accelkit.host.engine import plugins
from accelkit.host.errors import EngineError
from accelkit.host.launch import compose, folders, planning
from accelkit.host.launch.events import EventQueue
from accelkit.host.launch.plan import LaunchPlan

if TYPE_CHECKING:
    from accelkit.host.launch.backends.containers import Containers


class DockerBackend:
    """A container a node, labelled with the run's ID."""

    def __init__(self, plan: LaunchPlan) -> None:
        """For one plan; connects when it starts."""
        if plan.container is None:
            raise ValueError("the docker backend needs a plan with containers")
        self._plan = plan
        self._container_plan = plan.container
        self._placing: process.Child | None = None
        self._connected: Containers | None = None

    def artefacts(self) -> dict[str, str]:
        """The Compose file, and the passwd file that the containers see."""
        uid, gid = (int(part) for part in self._container_plan.user.split(":"))
        user = self._container_plan.env.get("USER", "user")
        return {
            compose.FILE: compose.render(self._plan),
            folders.PASSWD: planning.passwd_text(uid, gid, user),
        }

    def start(self, events: EventQueue) -> None:
        """`docker compose create`, then every container at once, each with a thread that follows and one that awaits it."""
        self._place()
        self._containers().start(self._plan.nodes, events)

    def stop(self) -> None:
        """SIGTERM to boot in every container; Compose that is still placing them is stopped too."""
        self._signal("SIGTERM")

    def dump_stacks(self) -> None:
        """SIGUSR1 to boot in every container."""
        if self._connected is not None:
            self._connected.signal("SIGUSR1")

    def kill(self) -> None:
        """SIGKILL to every container."""
        self._signal("SIGKILL")

    def clean(self) -> None:
        """Remove the run's containers, network and volumes, by label."""
        self._end_compose()
        self._containers().remove()

    def interactive(self) -> tuple[int, process.EndedBy]:
        """`docker compose run` of node 0 with our terminal."""
        words = [*self._compose("run", "--rm", "--no-deps"), self._plan.nodes[0].name]
        return process.attach(words, timeout=self._plan.timeout)

    def shell(self, argv: list[str]) -> tuple[int, process.EndedBy]:
        """`argv` in a container as node 0's, with our terminal, instead of its ranks."""
        head, *rest = argv
        service = self._plan.nodes[0].name
        return process.attach([*self._compose("run", "--rm", "--no-deps", "--entrypoint", head), service, *rest])

    def _containers(self) -> "Containers":
        if self._connected is None:
            from accelkit.host.launch.backends.containers import Containers

            self._connected = Containers(self._plan.run_id)
        return self._connected

    def _signal(self, name: str) -> None:
        self._end_compose()
        if self._connected is not None:
            self._connected.signal(name)

    def _compose(self, *words: str) -> list[str]:
        file = Path(self._plan.run_dir) / compose.FILE
        return [*plugins.compose(), "--project-name", compose.project(self._plan.run_id), "--file", str(file), *words]

    def _place(self) -> None:
        """Make network and containers, not started yet."""
        child = self._placing = process.Child(self._compose("create", "--no-build"))
        self._containers()
        output = child.stderr.read() + child.stdout.read()
        code = child.wait()
        self._placing = None
        if code and process.run([*plugins.compose(), "version"]).code:
            raise EngineError(
                "docker has no `compose` command", hint="install Docker's Compose plug-in (docker-compose-plugin)"
            )
        if code:
            raise EngineError(
                f"docker compose create failed: {last_words(output.decode(errors='replace'))}",
                hint=f"the file it was given: {Path(self._plan.run_dir) / compose.FILE}",
            )

    def _end_compose(self) -> None:
        child = self._placing
        if child is not None:
            child.kill_group()


def last_words(text: str) -> str:
    """The line of an engine's output that tells what went wrong: its last one that is not blank."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
