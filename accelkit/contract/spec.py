"""The launch spec: the one file that crosses from the host to every node and rank of a run."""

from dataclasses import field
from typing import Any, Final, Literal

from accelkit.contract.data import data

SPEC_VERSION: Final = 1


@data
class Program:
    """What every rank runs.

    `kind` "script": `target` is a path (absolute, or relative to the workdir); "module": a dotted name, as with `python -m`.
    """

    kind: Literal["script", "module"]
    target: str
    args: tuple[str, ...] = ()


@data
class RuntimeSettings:
    """Defaults of `Accelerator`'s arguments; an explicit argument in the script wins, with a warning."""

    strategy: str = "auto"
    """"auto" (ddp for more than one rank, else single), or the name of a registered strategy."""
    precision: str | None = None
    """"no", "bf16", "fp16", "fp8"; None leaves it to the script."""
    seed: int | None = None
    """Seed of all generators on all ranks; None draws none."""
    deterministic: bool = False
    """Deterministic algorithms, fixed thread count, fixed hash seed."""
    grad_accum_steps: int | None = None
    """Micro-batches per optimizer step; None leaves it to the script."""
    strategy_options: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Part ("fsdp", "ddp", "parallelism") -> options by their names in its plug-in; what the script's own plug-in says wins."""


@data
class LaunchSpec:
    """Everything a node needs to start its ranks. Paths are as the ranks see them."""

    version: int = SPEC_VERSION
    run_id: str
    nodes: int
    procs_per_node: int
    master_addr: str
    """Address of node 0 that every node can resolve: 127.0.0.1 with one node, "node0" on a run's own network."""
    master_port: int
    """A real port, never 0: ranks receive it literally."""
    program: Program
    workdir: str
    exchange_dir: str
    output_dir: str
    settings: RuntimeSettings = field(default_factory=RuntimeSettings)
    env: dict[str, str] = field(default_factory=dict)
    """Variables for the ranks that the user asked for. Never secrets."""
    ranks_on_machine: int
    """All ranks of the run on this physical machine, in whatever containers: threads are divided by it."""
    threads: int | None = None
    """Threads a rank; None: cores / ranks_on_machine, at least 1."""
    secrets_dir: str | None = None
    image_digest: str | None = None
    stop_grace: float = 3.0
    """Seconds between SIGTERM and SIGKILL when ranks are stopped."""
    failure_grace: float = 1.0
    """Seconds that the other ranks get to fail by themselves after the first failure, before they are stopped."""
    join_timeout: float = 300.0
    """Seconds a node waits for node 0's store before it gives up."""
    interactive: bool = False
    """Rank 0 of node 0 owns the terminal; its output is neither prefixed nor captured."""

    @property
    def world_size(self) -> int:
        """Number of ranks of the whole run."""
        return self.nodes * self.procs_per_node
