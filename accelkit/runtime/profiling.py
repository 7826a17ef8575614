"""Traces of torch's profiler, one per rank."""

import warnings
from pathlib import Path

import torch


def write_trace(profiler: torch.profiler.profile, folder: str, rank: int) -> Path | None:
    """Write the Chrome trace of a rank; None, with a warning, when the schedule let nothing be recorded."""
    if profiler.profiler is None:
        warnings.warn(
            f"profile: rank {rank} recorded nothing: the block ended before the schedule's first active step. "
            "Call profiler.step() after each step, more often than skip_first + wait + warmup",
            stacklevel=2,
        )
        return None
    path = Path(folder) / f"profile_{rank}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(path))
    return path
