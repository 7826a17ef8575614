"""Running `kit` and scripts as a user does: real processes, bounded in time."""

import contextlib
import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
KIT = [sys.executable, "-c", "from accelkit.host.cli.console import console; console()"]
PATIENCE = 240


@dataclass(frozen=True)
class Ended:
    """A process that has ended."""

    code: int
    out: str
    err: str


def kit(*words: str, cwd: Path, env: dict[str, str] | None = None) -> Ended:
    """`kit WORDS` in `cwd`, to its end."""
    return command([*KIT, *words], cwd=cwd, env=env)


def command(argv: Sequence[str], *, cwd: Path, env: dict[str, str] | None = None) -> Ended:
    """Any command, to its end."""
    done = subprocess.run(
        list(argv), cwd=cwd, env=_env(env), capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def start(*words: str, cwd: Path, env: dict[str, str] | None = None) -> "subprocess.Popen[str]":
    """`kit WORDS`, left running."""
    return subprocess.Popen(
        [*KIT, *words], cwd=cwd, env=_env(env), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def _env(env: dict[str, str] | None) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}


def runs(cwd: Path) -> list[dict[str, Any]]:
    """`kit runs list --json`."""
    found: list[dict[str, Any]] = json.loads(kit("runs", "list", "--json", cwd=cwd).out)
    return found


def until(condition: Callable[[], bool], what: str, patience: float = 60.0) -> None:
    """Wait for an event that can only be looked for."""
    deadline = time.monotonic() + patience
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {patience:g} s: {what}")
        time.sleep(0.05)


def dialogue(
    *words: str, cwd: Path, says: Sequence[tuple[str, str]], env: dict[str, str] | None = None
) -> tuple[int, str]:
    """`kit WORDS` with a terminal of its own; each text is typed once the one before it is shown. Its code and all it showed.

    What is typed while somebody still prepares the terminal may be lost, as a person's would: it is typed again until it has an effect.
    """
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.execvpe(KIT[0], [*KIT, *words], _env(env))
    shown = b""
    typed = ""
    deadline = time.monotonic() + PATIENCE
    for awaited, answer in says:
        while awaited.encode() not in shown:
            assert time.monotonic() < deadline, shown
            if select.select([terminal], [], [], 3.0)[0]:
                shown += os.read(terminal, 4096)
            else:
                os.write(terminal, typed.encode())
        typed = answer
        os.write(terminal, typed.encode())
    with contextlib.suppress(OSError):  # the other end is closed
        while data := os.read(terminal, 4096):
            shown += data
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()
