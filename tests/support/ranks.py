"""Ranks as plain processes: a module run once per rank, over gloo on this machine, bounded in time."""

import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Outcome:
    """How one rank ended."""

    code: int | None
    """Exit code; None when it had to be killed."""
    output: str
    """What it printed, errors included."""
    seconds: float
    """From the start of all ranks to the end of this one."""


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def rank_environment(rank: int, size: int, port: int, **more: str) -> dict[str, str]:
    """What a launcher tells a rank. One rank: nothing, as under plain `python`."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("KIT_")}
    env |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", **more}
    if size > 1:
        env |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return env


def run_ranks(
    size: int,
    *arguments: str,
    timeout: float = 120,
    folder: Path = ROOT,
    python: str = sys.executable,
    **env: str,
) -> list[Outcome]:
    """Run `python ARGUMENTS...` in `folder` once per rank and wait for all; what is left after `timeout` seconds is killed."""
    port, start = free_port(), time.monotonic()
    processes = [
        subprocess.Popen(
            [python, *arguments],
            cwd=folder,
            env=rank_environment(rank, size, port, **env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    outcomes = []
    try:
        for process in processes:
            left = max(0.1, timeout - (time.monotonic() - start))
            try:
                output, _ = process.communicate(timeout=left)
                code: int | None = process.returncode
            except subprocess.TimeoutExpired:
                process.kill()
                output, code = process.communicate()[0], None
            outcomes.append(Outcome(code, output, time.monotonic() - start))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return outcomes
