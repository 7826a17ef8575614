"""Contradictions between settings: every one of them, each with its place."""

from typing import TYPE_CHECKING, Final

from accelkit.host.config.model import Config
from accelkit.host.config.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from accelkit.host.config.loading import Origin

CONTAINER_ONLY: Final = ("cpus", "memory", "shm_size", "ulimit", "user", "mount")
"""Settings of `run` that only a container can honour."""
STRATEGIES: Final = ("auto", "single", "ddp")


def contradictions(config: Config, origins: "Mapping[str, Origin]") -> list[Problem]:
    """All problems across fields; a value that came from a file weaker than the flag it contradicts counts too, and is named."""
    run = config.run
    problems = []
    if run.on == "local":
        problems += [_problem(origins, name, "has no effect with on: local", "it with on: docker")
                     for name in CONTAINER_ONLY if _typed(origins, name)]  # fmt: skip
    if run.strategy not in STRATEGIES:
        problems.append(_problem(origins, "strategy", f"is {run.strategy!r}", f"one of {', '.join(STRATEGIES)}"))
    world = run.nodes * (run.procs_per_node or 1)
    if run.strategy == "single" and world > 1:
        problems.append(_problem(origins, "strategy", f"is single, but there are {world} ranks", "auto or ddp"))
    if config.build.network not in (None, "default", "host", "none"):
        where = origins["build.network"].text
        problems.append(
            Problem(
                where=where, key="build.network", what=f"is {config.build.network!r}", allowed="default, host or none"
            )
        )
    return problems


def _typed(origins: "Mapping[str, Origin]", name: str) -> bool:
    """Whether it was set for this very run: a project's file may hold settings for its containers beside a local run."""
    origin = origins.get(f"run.{name}")
    return origin is not None and origin.kind in ("flag", "variable")


def _problem(origins: "Mapping[str, Origin]", name: str, what: str, allowed: str) -> Problem:
    origin = origins.get(f"run.{name}")
    return Problem(where=origin.text if origin else "default", key=f"run.{name}", what=what, allowed=allowed)
