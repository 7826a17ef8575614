"""What the benchmarks share: sides measured in turn, paired ratios, one line a figure with its goal.

A machine is never quiet. The sides of a comparison are therefore run in every round, in rotating order, and what is reported is the
median of the rounds' ratios with its quartiles, never a ratio of two medians.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

BIN = Path(sys.executable).parent
ROOT = Path(__file__).resolve().parent.parent

Samples = dict[str, list[float]]
"""Side -> its figure in each round."""


def interleave(sides: Mapping[str, Callable[[], float]], rounds: int, warmup: int = 1) -> Samples:
    """Call every side once a round, in rotating order; each returns its own figure."""
    names = list(sides)
    samples: Samples = {name: [] for name in names}
    for turn in range(warmup + rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            figure = sides[name]()
            if turn >= warmup:
                samples[name].append(figure)
    return samples


def timed(work: Callable[[], object]) -> Callable[[], float]:
    """A side whose figure is the wall time of `work`, in seconds."""

    def run() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return run


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of some figures."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> "Spread":
        """Of at least one figure."""
        ordered = sorted(figures)
        last = len(ordered) - 1
        return cls(statistics.median(ordered), ordered[round(last / 4)], ordered[round(last * 3 / 4)])

    def times(self, factor: float) -> "Spread":
        """In another unit."""
        return Spread(self.median * factor, self.low * factor, self.high * factor)


def paired(over: Sequence[float], under: Sequence[float]) -> Spread:
    """Ratio of two sides, round by round."""
    return Spread.of([a / b for a, b in zip(over, under, strict=True)])


def show(what: str, spread: Spread, unit: str = "", goal: float | None = None) -> None:
    """One line: what, median (quartiles), and whether the goal (an upper bound) is met."""
    verdict = "" if goal is None else f"  goal <= {goal:g}{unit}: {'met' if spread.median <= goal else 'MISSED'}"
    print(f"{what:<58} {spread.median:8.3g}{unit} ({spread.low:.3g} to {spread.high:.3g}){verdict}", flush=True)


def headline(text: str) -> None:
    """What is measured, and how busy the machine was."""
    print(f"\n{text}   [load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores]", flush=True)


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Ours, with byte code allowed, as users have it."""
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | dict(extra or {})


def command(argv: Sequence[str | Path], env: Mapping[str, str] | None = None, cwd: Path | None = None) -> None:
    """Run to the end, silently. Raises RuntimeError with its output when it fails."""
    done = subprocess.run(
        [str(word) for word in argv],
        env=environment(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{argv}: exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")


def ranks(script: Path | str, arguments: Sequence[str], size: int, threads: int = 1) -> dict[str, object]:
    """Start `script` on `size` ranks by hand and return the last line of rank 0, which is JSON."""
    port = free_port()
    started = [
        subprocess.Popen(
            [sys.executable, str(script), *arguments],
            env=environment(rank_variables(rank, size, port, threads)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        outputs = [process.communicate(timeout=900) for process in started]
    except subprocess.TimeoutExpired:
        for process in started:
            process.send_signal(signal.SIGKILL)
        raise
    if any(process.returncode for process in started):
        raise RuntimeError("\n".join(error[-3000:] for _, error in outputs))
    found: dict[str, object] = json.loads(outputs[0][0].splitlines()[-1])
    return found


def rank_variables(rank: int, size: int, port: int, threads: int = 1) -> dict[str, str]:
    """The environment of one of `size` ranks of this machine."""
    found = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    if size > 1:
        found |= {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(size),
            "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size),
        }  # fmt: skip
    return found


def free_port() -> int:
    """A port that nobody has at the moment."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
