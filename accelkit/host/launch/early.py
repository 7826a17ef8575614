"""Local nodes that start while kit still plans: an interpreter needs a tenth of a second to be ready, and so does the plan.

Their `boot` reads where its spec lies from standard input; one that is not wanted after all sees the end of it and goes. Imports little,
or there would be nothing to win.
"""

import os
import sys
from pathlib import Path

from accelkit.contract import names
from accelkit.host import process
from accelkit.host.launch import environment
from accelkit.host.launch.stage import BOOT, Staged, stage_runtime


class EarlyNodes:
    """The `boot` processes of a local run that is about to be planned. Close it whatever happens: what was not taken ends."""

    def __init__(self, workdir: Path, run_id: str, nodes: int) -> None:
        """Start `nodes` of them in `workdir`, with the staged runtime of this installation."""
        self.run_id = run_id
        self.staged: Staged = stage_runtime()
        self._waiting = {
            index: process.Child(
                command(sys.executable, str(self.staged.folder), "-", index),
                cwd=workdir,
                env=variables(str(self.staged.folder), run_id, index),
                stdin=process.PIPE,
            )
            for index in range(nodes)
        }

    def take(self, node: int, spec: str) -> process.Child:
        """The process of this node, told where its spec lies; it is the caller's from now on."""
        child = self._waiting.pop(node)
        child.tell(f"{spec}\n")
        return child

    def close(self) -> None:
        """End the nodes that nobody took."""
        for child in self._waiting.values():
            child.kill_group()
            child.wait()
        self._waiting.clear()


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
