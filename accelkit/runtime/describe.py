"""What an `Accelerator()` made here would decide, in words, and where each decision comes from."""

import importlib.metadata
import platform
from collections.abc import Iterator

from accelkit import __version__
from accelkit.contract.spec import RuntimeSettings
from accelkit.runtime import choices, env, strategies

_LIBRARIES = ("torch", "safetensors", "numpy")


def describe() -> Iterator[str]:
    """Lines, as they become known: first what the environment says, which needs no torch, then what this machine allows.

    Raises what `Accelerator()` would raise. Without torch the lines end with how to install it.
    """
    yield _line("accelkit", f"{__version__}, Python {platform.python_version()}")
    yield _line("libraries", ", ".join(f"{name} {_version(name)}" for name in _LIBRARIES))
    world, defaults = env.read_world(), env.read_defaults()
    chosen = choices.choose(
        defaults, strategy=None, precision=None, grad_accum_steps=None, seed=None, deterministic=None, warn=False
    )
    told = "RANK, WORLD_SIZE" if world.size > 1 else "no WORLD_SIZE above 1: one process"
    yield _line("rank", f"{world.rank} of {world.size}", told)
    asked, unasked, origin = defaults.settings, RuntimeSettings(), defaults.source
    for name, text, field in (
        ("strategy", strategies.resolve(chosen.strategy, world.size), "strategy"),
        ("precision", chosen.precision, "precision"),
        ("accumulation", f"{chosen.grad_accum_steps} micro-batch(es) a step", "grad_accum_steps"),
        ("seed", "none" if chosen.seed is None else str(chosen.seed), "seed"),
        ("deterministic", "yes" if chosen.deterministic else "no", "deterministic"),
    ):
        yield _line(name, text, "default" if getattr(asked, field) == getattr(unasked, field) else origin)
    metrics = env.metrics_file()
    yield _line("outputs", str(env.output_dir().absolute()))
    yield _line("metrics", "not recorded" if metrics is None else str(metrics))
    yield from _machine(world, chosen.precision)


def _machine(world: env.World, precision_name: str) -> Iterator[str]:
    """What needs torch."""
    try:
        import torch  # noqa: F401
    except ImportError:
        yield _line("device", "torch is not installed: pip install 'accelkit[runtime]'")
        return
    from accelkit.runtime import devices, precision
    from accelkit.runtime.settings import Handlers

    kind = devices.choose(cpu=False)
    precision.make(precision_name, kind, Handlers())
    yield _line("device", f"{kind.name}:{world.local_rank}" if kind.indexed else kind.name, "what torch finds here")
    yield _line("backend", kind.backend if world.size > 1 else "none (one process)")


def _line(name: str, text: str, origin: str = "") -> str:
    shown = f"{text:<24} ({origin})" if origin else text
    return f"{name + ':':<15}{shown}\n"


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
