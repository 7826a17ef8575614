"""Starting ranks from a notebook or a running script: a function on several processes of this machine."""

import multiprocessing
import os
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist

from accelkit.contract import names
from accelkit.runtime import env, kinship
from accelkit.runtime.environment import patch_environment
from accelkit.runtime.errors import RankFailedError, SettingError, UnsupportedError
from accelkit.runtime.settings import DistributedType
from accelkit.runtime.state import PartialState

_PORT_OF_NODES: Final = 29500
"""Where several nodes meet when nobody says where."""
_SAID: Final = 16_000
"""Characters of an error that are told: what fits into a pipe without being read."""
_GRACE: Final = 5.0
"""Seconds that a rank gets between being asked to end and being killed, and then to be gone."""


class Failure(NamedTuple):
    """What a rank says before it fails."""

    when: float
    """time.monotonic(), the same clock in all processes of a machine."""
    error: str
    traceback: str


@dataclass(frozen=True, kw_only=True)
class Job:
    """A function, and the ranks of this node that are to run it."""

    function: Callable[..., Any]
    args: Sequence[Any]
    num_processes: int
    node_rank: int = 0
    num_nodes: int = 1
    address: str = "127.0.0.1"
    port: int | None = None
    cpu: bool = False
    precision: str | None = None

    def variables(self, local_rank: int, port: int) -> dict[str, str]:
        """What a launcher tells a rank."""
        rank, size = self.node_rank * self.num_processes + local_rank, self.num_nodes * self.num_processes
        told: dict[str, Any] = {"RANK": rank, "LOCAL_RANK": local_rank}
        told |= {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": self.num_processes, "GROUP_RANK": self.node_rank}
        told |= {"MASTER_ADDR": self.address, "MASTER_PORT": port, env.FORK_LAUNCHED: 1}
        if self.precision is not None:
            told[names.ENV_PRECISION] = self.precision
        return {name: str(value) for name, value in told.items()}


def notebook_launcher(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    num_processes: int | None = None,
    mixed_precision: str = "no",
    use_port: int | str | None = None,
    master_addr: str = "127.0.0.1",
    node_rank: int = 0,
    num_nodes: int = 1,
    rdzv_backend: str = "static",
    rdzv_endpoint: str = "",
    rdzv_conf: dict[str, Any] | None = None,
    rdzv_id: str = "none",
    max_restarts: int = 0,
    monitor_interval: float = 0.1,  # noqa: ARG001  (the end of a rank is noticed at once)
    log_line_prefix_template: str | None = None,
) -> None:
    """Run `function(*args)` on several ranks and wait for them. For notebooks: the function needs no file, and may be a closure.

    Ranks are forks of this process; on a CPU each computes with one thread. One process on one node: the function runs in this process.
    When this returns or raises, or this process dies, no rank is left, nor what a rank has started.

    `num_processes` counts the ranks of this node, as a rule one per device. `mixed_precision` is the precision of ranks whose Accelerator
    names none. Ranks meet at `use_port`: None is a free one, that is kept until the end (29500 for several nodes). Of several nodes,
    `master_addr` is the address of the first, `node_rank` the index of this one. `max_restarts` says how often all ranks of this node are
    started again after one has failed. On one node nothing is to be negotiated, and rdzv_backend "c10d" is as good as the
    default; else of rdzv_backend, rdzv_endpoint, rdzv_conf, rdzv_id and log_line_prefix_template only the defaults
    are available; `torchrun` has the others.

    Raises RankFailedError with the traceback of the rank that failed first, after all others were ended; SettingError and
    UnsupportedError for what cannot be started from here.
    """
    _refuse_others(
        rdzv_backend=(rdzv_backend, rdzv_backend if num_nodes == 1 and rdzv_backend == "c10d" else "static"),
        rdzv_endpoint=(rdzv_endpoint, ""),
        rdzv_conf=(rdzv_conf or None, None),
        rdzv_id=(rdzv_id, "none"),
        log_line_prefix_template=(log_line_prefix_template, None),
    )
    job = Job(
        function=function,
        args=args,
        num_processes=_checked(num_processes, node_rank, num_nodes),
        node_rank=node_rank,
        num_nodes=num_nodes,
        address=master_addr,
        port=None if use_port is None else int(use_port),
        precision=None if mixed_precision == "no" else mixed_precision,
    )
    if job.num_processes * job.num_nodes > 1:
        _launch(job, max_restarts)
        return
    with patch_environment(**({} if job.precision is None else {names.ENV_PRECISION: job.precision})):
        function(*args)


def debug_launcher(function: Callable[..., Any], args: Sequence[Any] = (), num_processes: int = 2) -> None:
    """Run `function(*args)` on several ranks on the CPU, also where there are other devices. The process group is there when it begins.

    Raises what :func:`notebook_launcher` raises.
    """
    _launch(Job(function=function, args=args, num_processes=_checked(num_processes, 0, 1), cpu=True), 0)


class PrepareForLaunch:
    """A function for `torch.multiprocessing.start_processes` and the like: called with a local rank, it tells the rank who it is.

    The caller has set WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and of several nodes NODE_RANK and NPROC, the ranks of a node.

    Args:
        launcher: the function; it gets what comes after the local rank.
        distributed_type: of the run; makes no difference here.
        debug: make the process group, on the CPU, before the function is called.
    """

    def __init__(
        self, launcher: Callable[..., Any], distributed_type: DistributedType | str = "NO", debug: bool = False
    ) -> None:
        self.launcher = launcher
        self.distributed_type = DistributedType(distributed_type)
        self.debug = debug

    def __call__(self, index: int, *args: Any) -> None:
        """Be local rank `index`, and call the function."""
        env.become({"LOCAL_RANK": str(index), "RANK": str(env.first_rank_of_node() + index), env.FORK_LAUNCHED: "1"})
        if self.debug:
            PartialState(cpu=True)
        self.launcher(*args)


def _refuse_others(**given: tuple[Any, Any]) -> None:
    """Raise where an argument is not its default: (what was given, default)."""
    odd = [f"{name}={value!r}" for name, (value, default) in given.items() if value != default]
    if odd:
        raise UnsupportedError(
            f"notebook_launcher: {', '.join(odd)} is not available", hint="run a script with `torchrun` for that"
        )


def _checked(num_processes: int | None, node_rank: int, num_nodes: int) -> int:
    """The number of processes. Raises SettingError for ranks that there are not."""
    if num_processes is None:
        raise SettingError("num_processes is missing", hint="as a rule one per device: num_processes=2")
    if num_processes < 1 or not 0 <= node_rank < num_nodes:
        raise SettingError(
            f"num_processes={num_processes}, node_rank={node_rank}, num_nodes={num_nodes}: no such ranks",
            hint="there is at least one process, and node_rank counts from 0 to num_nodes - 1",
        )
    return num_processes


def _refuse_a_used_process() -> None:
    """Raise where ranks cannot be forked: they would inherit what must be their own."""
    if PartialState.current() is not None or dist.is_initialized():
        raise SettingError(
            "an Accelerator (or a process group) exists already, and ranks would inherit it",
            hint="make the Accelerator inside of the function that is launched, and restart the notebook's kernel",
        )
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise UnsupportedError(
            "CUDA is already initialized in this process, and cannot be used in ranks that are forked from it",
            hint="restart the notebook's kernel, and put nothing on a GPU before the launch: move such lines into the function",
        )
    if "bitsandbytes" in sys.modules and torch.version.cuda is not None:
        raise UnsupportedError(
            "bitsandbytes is imported in this process, and initializes CUDA, which ranks cannot inherit",
            hint="restart the notebook's kernel, and import bitsandbytes inside of the function",
        )


def _launch(job: Job, max_restarts: int) -> None:
    _refuse_a_used_process()
    for attempt in range(max_restarts + 1):
        try:
            with _meeting_port(job) as port:
                _run(job, port)
        except RankFailedError as error:
            if attempt == max_restarts:
                raise
            warnings.warn(f"restart {attempt + 1} of {max_restarts}: {str(error).splitlines()[0]}", stacklevel=3)
        else:
            return


@contextmanager
def _meeting_port(job: Job) -> Iterator[int]:
    """The port where ranks meet. On node 0 it is bound, so that nobody else gets it, but not listened to: rank 0 may still take it."""
    port = job.port if job.port is not None else (0 if job.num_nodes == 1 else _PORT_OF_NODES)
    if job.node_rank > 0:
        yield port
        return
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            holder.bind(("", port))
        except OSError as error:
            raise SettingError(
                f"use_port={port}: {error.strerror}", hint="leave use_port out (one node), or name a port that is free"
            ) from error
        yield int(holder.getsockname()[1])


def _run(job: Job, port: int) -> None:
    """Start the ranks, wait for them, and end what is left when one fails or the caller is interrupted."""
    context = multiprocessing.get_context("fork")
    ranks: list[tuple[ForkProcess, Connection]] = []
    try:
        for local_rank in range(job.num_processes):
            reading, writing = context.Pipe(duplex=False)
            arguments = job, job.variables(local_rank, port), os.getpid(), writing
            process = context.Process(target=_rank_main, args=arguments, name=f"local rank {local_rank}")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # a kernel has threads; a rank needs none of them
                process.start()
            writing.close()
            ranks.append((process, reading))
        running: dict[Any, ForkProcess] = {process.sentinel: process for process, _ in ranks}
        while running and not any(process.exitcode for process, _ in ranks):
            for sentinel in wait(list(running)):
                running.pop(sentinel).join()
    finally:
        ended = [process.exitcode for process, _ in ranks]
        _end([process for process, _ in ranks])
    failure = _first_failure(job, [reading for _, reading in ranks], ended)
    if failure is not None:
        raise failure


def _end(processes: Sequence[ForkProcess]) -> None:
    """End the ranks that are still there, and what ranks have started: ask, then kill. No wait is without a limit."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            _signal_group(process, number)
        deadline = time.monotonic() + _GRACE
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
    left = [f"{process.name} (pid {process.pid})" for process in processes if process.exitcode is None]
    if left:
        warnings.warn(f"{', '.join(left)} cannot be killed, and is left", stacklevel=2)


def _signal_group(process: ForkProcess, number: int) -> None:
    """Signal a rank and all of its group; a rank that has just been forked leads none yet."""
    assert process.pid is not None
    for send in (os.killpg, os.kill) if process.exitcode is None else (os.killpg,):
        try:
            send(process.pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def _first_failure(job: Job, pipes: Sequence[Connection], ended: Sequence[int | None]) -> RankFailedError | None:
    """The error of the rank that failed first: killed ones come first, for they say nothing and the others fail because of them."""
    first, size = job.node_rank * job.num_processes, job.num_nodes * job.num_processes
    told = {rank: failure for rank, pipe in enumerate(pipes) if (failure := _read(pipe)) is not None}
    for rank, code in enumerate(ended):
        if code and rank not in told:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            return RankFailedError(f"rank {first + rank} of {size} {how}")
    if not told:
        return None
    rank, failure = min(told.items(), key=lambda item: item[1].when)
    return RankFailedError(f"rank {first + rank} of {size} failed: {failure.error}\n\n{failure.traceback}")


def _read(pipe: Connection) -> Failure | None:
    """What a rank has said; None when it ended without a word."""
    try:
        return Failure(*pipe.recv()) if pipe.poll() else None
    except EOFError:
        return None


def _rank_main(job: Job, variables: dict[str, str], parent: int, report: Connection) -> None:
    """What a rank does. Whatever the function raises is told to the launcher."""
    kinship.die_with(parent)
    os.setpgid(0, 0)  # Ctrl-C is the launcher's, which ends the whole group
    env.become(variables)
    torch.set_num_threads(1)  # the caller's threads did not come along
    try:
        if job.cpu:
            PartialState(cpu=True)
        job.function(*job.args)
        state = PartialState.current()
        if state is not None:
            state.destroy_process_group()
    except BaseException as error:  # noqa: BLE001  (an outer edge)
        if isinstance(error, SystemExit) and not error.code:
            return
        said = f"{type(error).__name__}: {error}"[:_SAID], traceback.format_exc()[-_SAID:]
        report.send((time.monotonic(), *said))
        sys.exit(1)
