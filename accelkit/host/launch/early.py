"""Local nodes that start while kit still plans: an interpreter needs a tenth of a second to be ready, and so does the plan.

Their `boot` reads where its spec lies from standard input; one that is not wanted after all sees the end of it and goes. Imports little,
or there would be nothing to win.
"""

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from accelkit.contract import names
from accelkit.host import paths, process
from accelkit.host.errors import KitError
from accelkit.host.launch import environment
from accelkit.host.launch.stage import BOOT, Staged, stage_runtime
from accelkit.host.runs import ids

_OTHERS: Final = {"--help", "-h", "--dry-run", "--detach", "-d", "--interactive"}
"""With these, no local node starts at once."""


class EarlyNodes:
    """The `boot` processes of a local run that is about to be planned. Close it whatever happens: what was not taken ends."""

    def __init__(self, workdir: Path, run_id: str, nodes: int) -> None:
        """Start `nodes` of them in `workdir`, with the staged runtime of this installation."""
        self.run_id = run_id
        self.staged: Staged = stage_runtime()
        self._workdir = workdir
        self._waiting: dict[int, process.Child] = {}
        self.be(nodes)

    def be(self, nodes: int) -> None:
        """Start those of `nodes` that are not up yet."""
        for index in range(len(self._waiting), nodes):
            self._waiting[index] = process.Child(
                command(sys.executable, str(self.staged.folder), "-", index),
                cwd=self._workdir,
                env=variables(str(self.staged.folder), self.run_id, index),
                stdin=process.PIPE,
            )

    def take(self, node: int, spec: str) -> process.Child:
        """The process of this node, told where its spec lies; it is the caller's from now on."""
        child = self._waiting.pop(node)
        child.tell(os.fsencode(f"{spec}\n"))
        return child

    def close(self) -> None:
        """End the nodes that nobody took."""
        for child in self._waiting.values():
            child.kill_group()
            child.wait()
        self._waiting.clear()


_guessed: list[EarlyNodes] = []


def guess(arguments: Sequence[str]) -> None:
    """Start a node for what looks like a local run, before anything is imported that can read a command line.

    A guess that was wrong starts no rank: a node that nobody takes ends with kit. What is wrong with the machine is said later, by
    whoever starts the nodes that are wanted.
    """
    if (
        arguments[0] in ("run", "launch")
        and "--on" in arguments
        and "local" in arguments
        and not _OTHERS & set(arguments)
    ):
        with contextlib.suppress(KitError, OSError):
            workdir = Path.cwd()
            _guessed.append(EarlyNodes(workdir, ids.new_id(paths.project_runs(workdir)), 1))


def start(nodes: int) -> EarlyNodes:
    """As many local nodes in the current folder, with the one that was guessed. Raises KitError when they cannot be staged."""
    workdir = Path.cwd()
    early = _guessed.pop() if _guessed else EarlyNodes(workdir, ids.new_id(paths.project_runs(workdir)), nodes)
    early.be(nodes)
    return early


def command(python: str, runtime: str, spec: str, node: int) -> list[str]:
    """How a local node is started; `spec`: its path, or "-" for standard input."""
    return [python, os.path.join(runtime, BOOT), spec, "--node", str(node)]


def variables(runtime: str, run_id: str, node: int) -> dict[str, str]:
    """The environment of a local node: the caller's less rank variables, with the runtime in front and the run's mark."""
    env = environment.inherited(environment.current())
    path = [runtime, *filter(None, [env.get("PYTHONPATH")])]
    return {
        **env,
        "PYTHONPATH": os.pathsep.join(path),
        names.ENV_NODE_NAME: names.node_name(node),
        names.ENV_RUN_ID: run_id,
    }
