"""How a run ended: the results that came over the wall, and the one failure that caused the rest."""

import re
from pathlib import Path
from typing import Final

from accelkit.contract import codec, names
from accelkit.contract.results import NodeReport, RankResult
from accelkit.host.launch.events import NodeExited
from accelkit.host.launch.plan import LaunchPlan
from accelkit.host.runs.record import Outcome, RootCause

_GLOO: Final = re.compile(r"^\[[^]]*gloo[^]]*\] ")
KILLED: Final = 137
NOT_RUNNABLE: Final = (126, 127)
"""Exit codes as a shell gives them."""


def collect(plan: LaunchPlan) -> tuple[tuple[RankResult, ...], tuple[NodeReport, ...], list[str]]:
    """Results of all ranks and reports of all nodes in the exchange folder, and a line for each file that cannot be read."""
    folder = exchange_folder(plan)
    problems: list[str] = []
    ranks, nodes = [], []
    for rank in range(plan.spec.world_size):
        if (folder / names.rank_file(rank)).exists():
            try:
                ranks.append(codec.read(RankResult, folder / names.rank_file(rank)))
            except codec.CodecError as error:
                problems.append(str(error))
    for node in plan.nodes:
        if (folder / names.node_file(node.index)).exists():
            try:
                nodes.append(codec.read(NodeReport, folder / names.node_file(node.index)))
            except codec.CodecError as error:
                problems.append(str(error))
    return tuple(ranks), tuple(nodes), problems


def exchange_folder(plan: LaunchPlan) -> Path:
    """The exchange folder on the host."""
    return Path(plan.run_dir) / "exchange"


def root_cause(plan: LaunchPlan, ranks: tuple[RankResult, ...], exits: list[NodeExited]) -> RootCause | None:
    """The earliest failure of a rank, or else the first node that died without saying which; None when all went well.

    A node whose container was killed outright leaves no results of its ranks: it comes first when it exited before any rank failed.
    """
    failed = sorted((r for r in ranks if r.cause not in ("ok", "stopped")), key=lambda r: r.precedence)
    first = next((e for e in exits if e.code != 0), None)
    reported = {r.node for r in ranks}
    silent = [e for e in exits if e.code != 0 and e.node not in reported]
    if first is not None and first in silent:
        return _node_cause(first)
    if failed:
        return _rank_cause(plan, failed[0])
    return _node_cause(first) if first else None


def exit_code(root: RootCause | None, ranks: tuple[RankResult, ...], exits: list[NodeExited]) -> int:
    """What kit exits with after these ends: the root cause's code, 0 when all went well."""
    if root is None:
        return names.EXIT_OK
    result = next((r for r in ranks if r.rank == root.rank), None)
    if result is not None:
        return result.exit_code or names.EXIT_FAILED
    return next((e.code for e in exits if e.node == root.node), names.EXIT_FAILED)


def _rank_cause(plan: LaunchPlan, result: RankResult) -> RootCause:
    words = f"rank {result.rank} on {names.node_name(result.node)} {describe(plan, result)}"
    return RootCause(node=result.node, rank=result.rank, cause=result.cause, message=words)


def describe(plan: LaunchPlan, result: RankResult) -> str:
    """What became of a rank, as the rest of a sentence that begins with its name."""
    code = f"(exit code {result.exit_code})"
    if result.cause == "error" and result.error:
        place = f" at {result.error.file}:{result.error.line}" if result.error.file else ""
        return f"raised {result.error.type}: {_message(result)}{place} {code}{_memory_note(plan, result)}"
    if result.cause == "oom":
        return f"ran out of memory: the kernel killed it at {memory_words(plan)} {code}"
    if result.cause == "signal":
        return f"was killed by {result.signal} {code}{_signal_hint(result.signal)}"
    if result.cause == "stopped":
        return "was stopped by kit"
    if result.cause == "ok":
        return "ended well"
    return f"exited with code {result.exit_code}{_memory_note(plan, result)}"


def _memory_note(plan: LaunchPlan, result: RankResult) -> str:
    """What may be behind a failure that does not speak of it: a worker process that was killed for memory."""
    if not result.memory_kills:
        return ""
    return f"; the kernel killed {result.memory_kills} process(es) of its node for memory, at {memory_words(plan)}"


def memory_words(plan: LaunchPlan) -> str:
    """The memory limit of a node, in words."""
    limit = plan.container.memory if plan.container else None
    return f"the container's limit of {limit / 2**20:.0f} MiB (--memory)" if limit else "the memory limit of its cgroup"


def _signal_hint(name: str | None) -> str:
    if name == "SIGBUS":
        return ": /dev/shm may be full; give it more with --shm-size"
    return ""


def _node_cause(ended: NodeExited) -> RootCause:
    name, code = names.node_name(ended.node), f"(exit code {ended.code})"
    if ended.oom:
        words = f"{name} ran out of memory: the kernel killed its container at the limit (--memory) {code}"
        return RootCause(node=ended.node, rank=None, cause="oom", message=words)
    if ended.code == KILLED:
        words = f"{name} was killed (SIGKILL) from outside {code}"
        return RootCause(node=ended.node, rank=None, cause="signal", message=words)
    why = (
        "could not start: its image has no python3 that runs" if ended.code in NOT_RUNNABLE else "ended without results"
    )
    return RootCause(node=ended.node, rank=None, cause="node-lost", message=f"{name} {why} {code}")


def _message(result: RankResult) -> str:
    """An error's message on one line: a first line that ends with a colon goes on with the second.

    Of a lost peer without gloo's file before and advice behind it.
    """
    lines = [line.strip() for line in result.error.message.strip().splitlines()] if result.error else []
    if not lines:
        return "(no message)"
    if result.lost_a_peer:
        return _GLOO.sub("", lines[0]).partition(". This is typically")[0]
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


def failed_before(ended: Outcome, limit: float) -> bool:
    """Whether a rank had failed by itself before `limit` (seconds since the epoch), when a run's time was up."""
    return any(rank.cause not in ("ok", "stopped") and rank.ended_at < limit for rank in ended.ranks)
