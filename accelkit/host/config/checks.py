"""Contradictions between settings: every one of them, each with its place."""

import math
from typing import TYPE_CHECKING, Any, Final

from accelkit.contract.options import Option, options
from accelkit.contract.strategies import StrategyOptions
from accelkit.host.config import syntax
from accelkit.host.config.model import Config, RunConfig
from accelkit.host.config.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from accelkit.host.config.loading import Origin

LEAST_MEMORY: Final = 6 << 20
LEAST_CPUS: Final = 0.01
CONTAINER_ONLY: Final = ("cpus", "memory", "shm_size", "ulimit", "user", "mount")
"""Settings of `run` that only a container can honour."""


def contradictions(config: Config, origins: "Mapping[str, Origin]") -> list[Problem]:
    """All problems across fields; a value that came from a file weaker than the flag it contradicts counts too, and is named."""
    run = config.run
    problems = []
    if run.on == "local":
        problems += [_problem(origins, name, "has no effect with on: local", "on: docker, or without it")
                     for name in CONTAINER_ONLY if _typed(origins, name)]  # fmt: skip
    world = run.nodes * (run.procs_per_node or 1)
    if run.strategy == "single" and world > 1:
        problems.append(_problem(origins, "strategy", f"is single, but there are {world} ranks", "auto or ddp"))
    problems += _strategy_options(run, origins)
    problems += _too_little(run, origins)
    if config.build.network not in (None, "default", "host", "none"):
        where = origins["build.network"].text
        problems.append(
            Problem(
                where=where, key="build.network", what=f"is {config.build.network!r}", allowed="default, host or none"
            )
        )
    return problems


def _too_little(run: RunConfig, origins: "Mapping[str, Origin]") -> list[Problem]:
    """Limits below what any engine accepts."""
    problems = []
    if run.memory is not None and syntax.parse_size(run.memory) < LEAST_MEMORY:
        problems.append(_problem(origins, "memory", f"is {run.memory!r}", "6m or more"))
    if run.cpus is not None and syntax.parse_cpus(run.cpus) < LEAST_CPUS:
        problems.append(_problem(origins, "cpus", f"is {run.cpus!r}", f"{LEAST_CPUS} or more"))
    return problems


def _strategy_options(run: RunConfig, origins: "Mapping[str, Origin]") -> list[Problem]:
    """Options that the chosen strategy does not look at, numbers below one, and layouts that are not as many ranks as there are."""
    problems = []
    given = {
        name: described
        for name, (_, described) in options(StrategyOptions).items()
        if f"run.{name}" in origins and getattr(run, name) not in (None, [])
    }
    for name, described in given.items():
        problems += _without_effect(run, origins, name, described)
        value: Any = getattr(run, name)
        if type(value) is int and value < 1:
            problems.append(_problem(origins, name, f"is {value}", "a whole number from 1"))
    sizes = [getattr(run, name) or 1 for name in ("dp_replicate_size", "dp_shard_size", "tp_size")]
    named = next((name for name in given if name.endswith("_size")), None)
    if named is not None and run.procs_per_node is not None and math.prod(sizes) != run.nodes * run.procs_per_node:
        world = run.nodes * run.procs_per_node
        what = f"makes dp_replicate {sizes[0]} x dp_shard {sizes[1]} x tp {sizes[2]} = {math.prod(sizes)} ranks, but there are {world}"
        fitting = [
            f"dp_shard_size {world // size}, tp_size {size}" for size in range(1, world + 1) if world % size == 0
        ]
        problems.append(_problem(origins, named, what, " or ".join(fitting[:4])))
    return problems


def _without_effect(run: RunConfig, origins: "Mapping[str, Origin]", name: str, described: Option) -> list[Problem]:
    is_overruled = _typed(origins, "strategy") and not _typed(origins, name)  # a file's block waits for its strategy
    if run.strategy not in described.strategies and not is_overruled:
        allowed = " or ".join(f"strategy: {strategy}" for strategy in described.strategies)
        return [_problem(origins, name, f"has no effect with strategy: {run.strategy}", allowed)]
    if described.needs is not None:
        other, values = described.needs
        chosen = getattr(run, other)
        if chosen not in (None, *values):
            return [_problem(origins, name, f"has no effect with {other}: {chosen}", f"{other}: {' or '.join(values)}")]
    return []


def _typed(origins: "Mapping[str, Origin]", name: str) -> bool:
    """Whether it was set for this very run: a project's file may hold settings for its containers beside a local run."""
    origin = origins.get(f"run.{name}")
    return origin is not None and origin.kind in ("flag", "variable")


def _problem(origins: "Mapping[str, Origin]", name: str, what: str, allowed: str) -> Problem:
    origin = origins.get(f"run.{name}")
    return Problem(where=origin.text if origin else "default", key=f"run.{name}", what=what, allowed=allowed)
