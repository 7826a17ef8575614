"""What a backend is: it starts the nodes of a plan, reports what happens as events, stops and cleans up."""

import threading
from collections.abc import Callable
from importlib import import_module
from typing import Final, Protocol

from accelkit.host import process
from accelkit.host.errors import UsageError
from accelkit.host.launch.events import EventQueue
from accelkit.host.launch.plan import LaunchPlan


class Backend(Protocol):
    """One place where ranks can run. Made for one plan, used for one run."""

    def artefacts(self) -> dict[str, str]:
        """Files (name -> text) that this backend needs in the run's folder; `--dry-run` prints them. Pure."""
        ...

    def start(self, events: EventQueue) -> None:
        """Start every node and return; from then on `events` receives Line and, once a node, NodeExited (or EngineLost).

        Raises KitError when the nodes cannot be started; what was started by then is removed by `clean`.
        """
        ...

    def stop(self) -> None:
        """Ask every node to end (SIGTERM to boot, which ends its ranks). Returns at once; may be called at any time."""
        ...

    def dump_stacks(self) -> None:
        """Have every rank print the Python stacks of all its threads. Returns at once."""
        ...

    def kill(self) -> None:
        """End every node without asking. Returns at once; may be called at any time."""
        ...

    def clean(self) -> None:
        """Remove everything that was made for the run. Idempotent, bounded in time; raises EngineError when the engine cannot."""
        ...

    def interactive(self) -> tuple[int, process.EndedBy]:
        """Run the only node with our own terminal; its exit code, and what ended it from outside (the plan's time limit, a signal)."""
        ...


REGISTRY: Final[dict[str, str]] = {
    "docker": "accelkit.host.launch.backends.docker:DockerBackend",
    "local": "accelkit.host.launch.backends.local:LocalBackend",
}
"""Backend -> where its class is. A new backend is a file here and a line there."""


def make(plan: LaunchPlan) -> Backend:
    """The backend that a plan names. Raises UsageError for one that this version does not know."""
    if plan.backend not in REGISTRY:
        raise UsageError(f"backend {plan.backend!r} is unknown; known are {', '.join(REGISTRY)}")
    module, name = REGISTRY[plan.backend].split(":")
    backend: Backend = getattr(import_module(module), name)(plan)
    return backend


def thread(work: Callable[..., None], *arguments: object) -> threading.Thread:
    """A daemon thread that does `work(*arguments)`, started."""
    started = threading.Thread(target=work, args=arguments, daemon=True)
    started.start()
    return started
