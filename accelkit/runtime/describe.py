"""What an `Accelerator()` made here would decide, in words."""

import torch

from accelkit.runtime import choices, devices, env, precision, strategies
from accelkit.runtime.settings import Handlers


def describe() -> str:
    """A line per decision: ranks, device, backend, strategy, precision, seed. Raises what `Accelerator()` would raise."""
    world, defaults, kind = env.read_world(), env.read_defaults(), devices.choose(cpu=False)
    chosen = choices.choose(
        defaults, strategy=None, precision=None, grad_accum_steps=None, seed=None, deterministic=None, warn=False
    )
    precision.make(chosen.precision, kind, Handlers())
    device = f"{kind.name}:{world.local_rank}" if kind.indexed else kind.name
    lines = {
        "torch": torch.__version__,
        "rank": f"{world.rank} of {world.size}",
        "device": device,
        "backend": kind.backend if world.size > 1 else "none (one process)",
        "strategy": strategies.resolve(chosen.strategy, world.size),
        "precision": chosen.precision,
        "accumulation": f"{chosen.grad_accum_steps} micro-batch(es) a step",
        "seed": "none" if chosen.seed is None else str(chosen.seed),
        "deterministic": "yes" if chosen.deterministic else "no",
        "settings": defaults.source,
        "outputs": str(env.output_dir().absolute()),
    }
    return "".join(f"{name + ':':<15}{text}\n" for name, text in lines.items())
