"""Collectives on two ranks over gloo: raw torch.distributed, accelkit, and Accelerate where it is installed, in one run.

python bench/gather.py            a line per figure; each ratio is the median of ratios paired round by round
python bench/gather.py --quick    fewer rounds

The three are timed in turn, in the same processes, in an order that rotates; each result is first compared with raw's.
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
Action = Callable[[], Any]
SIZES = {"1 KB": 1 << 10, "64 KB": 1 << 16, "1 MB": 1 << 20, "16 MB": 1 << 24, "32 MB": 1 << 25, "64 MB": 1 << 26}


def timed(actions: dict[str, Action], rounds: int, repeats: int) -> dict[str, list[float]]:
    """Seconds per call of each action, a figure per round."""
    import torch.distributed as dist

    names, found = list(actions), {name: [] for name in actions}
    for number in range(-1, rounds):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            dist.barrier()
            before = time.perf_counter()
            for _ in range(repeats):
                actions[name]()
            if number >= 0:
                found[name].append((time.perf_counter() - before) / repeats)
    return found


def report(what: str, found: dict[str, list[float]]) -> None:
    """One line: the median of raw, and of each other one its ratio to raw and to Accelerate."""
    raw = found["raw"]
    line = [f"{what:<22} raw {statistics.median(raw) * 1e6:>9.0f} us"]
    for name, values in found.items():
        if name != "raw":
            ratio = statistics.median(value / base for value, base in zip(values, raw, strict=True))
            line.append(f"{name} {ratio:5.2f} x raw")
    if "accelerate" in found and "accelkit" in found:
        pairs = zip(found["accelkit"], found["accelerate"], strict=True)
        line.append(f"accelkit {statistics.median(ours / theirs for ours, theirs in pairs):5.2f} x accelerate")
    print("   ".join(line), flush=True)


def raw_gather(tensor: Any) -> Any:
    """One all-gather into one tensor."""
    import torch
    import torch.distributed as dist

    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gathered = torch.empty((dist.get_world_size() * tensor.shape[0], *tensor.shape[1:]), dtype=tensor.dtype)
    gather(gathered, tensor)
    return gathered


def raw_pad(tensor: Any, dim: int) -> Any:
    """An exchange of shapes, and a copy."""
    import torch

    longest = int(raw_gather(torch.tensor(tensor.shape)[None])[:, dim].max())
    shape = list(tensor.shape)
    shape[dim] = longest
    padded = tensor.new_zeros(shape)
    padded.narrow(dim, 0, tensor.shape[dim]).copy_(tensor)
    return padded


def raw_objects(objects: list[Any]) -> list[Any]:
    """All ranks' lists as one."""
    import torch.distributed as dist

    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, objects)
    return [item for part in found for item in part]


def libraries() -> dict[str, Any]:
    """An Accelerator of each library that is installed."""
    import accelkit

    found = {"accelkit": accelkit.Accelerator(cpu=True)}
    try:
        import accelerate
    except ImportError:
        return found
    return {**found, "accelerate": accelerate.Accelerator(cpu=True)}


def worker(rounds: int) -> None:
    """What each rank does."""
    import torch
    import torch.distributed as dist
    from torch.utils._pytree import tree_leaves

    torch.set_num_threads(1)
    made = libraries()
    rank = dist.get_rank()

    def compare(what: str, raw: Action, ours: Callable[[Any], Any], repeats: int, count: int = rounds) -> None:
        actions = {"raw": raw, **{name: lambda acc=acc: ours(acc) for name, acc in made.items()}}
        wanted = tree_leaves(raw())
        for name, action in actions.items():
            for _ in range(2):  # the second time everything is in place
                found = tree_leaves(action())
            same = all(torch.equal(a, b) if torch.is_tensor(a) else a == b for a, b in zip(found, wanted, strict=True))
            assert same, f"{what}: {name} differs from raw"
        figures = timed(actions, count, repeats)
        if rank == 0:
            report(what, figures)

    for name, size in SIZES.items():
        tensor = torch.randn(size // 256, 64)
        repeats = max(1, min(30, (4 << 20) // size))
        compare(f"gather {name}", lambda t=tensor: raw_gather(t), lambda acc, t=tensor: acc.gather(t), repeats)
    nested = {f"k{i}": {"a": torch.randn(32, 8), "b": torch.randint(0, 9, (32,))} for i in range(10)}
    leaves = tree_leaves(nested)
    compare("gather of 20 tensors", lambda: [raw_gather(x) for x in leaves], lambda acc: acc.gather(nested), 15)
    objects = [{"id": i, "text": "hello world " * 4, "rank": rank} for i in range(100)]
    compare(
        "gather of 100 objects", lambda: raw_objects(objects), lambda acc: acc.gather_for_metrics(objects, True), 15
    )
    ragged = torch.randn(32, 50 + 10 * rank, 8)
    compare("pad_across_processes", lambda: raw_pad(ragged, 1), lambda acc: acc.pad_across_processes(ragged, dim=1), 20)
    dist.barrier()
    dist.destroy_process_group()


def main() -> int:
    """Start two ranks; the worst of their exit codes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(3 if arguments.quick else 9)
        return 0
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = []
    for rank in range(2):
        env = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH", "")]))
        ranks.append(subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--worker"], env=env))
    return max(abs(process.wait()) for process in ranks)


if __name__ == "__main__":
    raise SystemExit(main())
