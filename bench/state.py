"""Saving and loading a run's state beside a bare write and read, Accelerate, and torch's distributed checkpoints, in one run.

python bench/state.py             1 GB of float32 weights and 2 GB of AdamW's moments; needs 8 GB of memory
python bench/state.py --layers 6  a tenth of that
python bench/state.py --rounds 5

Every side runs in a fresh process, once a round, in rotating order; a figure is the median over the rounds, a ratio the median of ratios
paired round by round. `blocked` is how long the training loop stands still, `durable` ends when all files are on the disk. A save
beside training is measured the second time: the first makes the buffers.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
Figures = dict[str, float]
SIDES = ("raw", "accelkit", "accelerate", "dcp")
RATIOS = (
    ("accelkit", "durable s", "raw", "durable s", 1.10),
    ("accelkit", "durable s", "accelerate", "durable s", 1.0),
    ("accelkit", "async blocked s", "accelkit", "blocked s", 0.2),
    ("accelkit", "async blocked s", "dcp", "async blocked s", 0.6),
    ("accelkit", "async blocked s", "raw", "snapshot s", 1.1),
    ("accelkit", "load s", "accelerate", "load s", 0.5),
    ("accelkit", "load s", "raw", "load s", None),
)


class Peak:
    """Anonymous memory above the level at the start, sampled, and wall time."""

    def __enter__(self) -> "Peak":
        self._start = self._most = anonymous()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        self._since = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._since
        self._stop.set()
        self._thread.join()
        self.mib = (max(self._most, anonymous()) - self._start) / 1024

    def _watch(self) -> None:
        while not self._stop.wait(0.004):
            self._most = max(self._most, anonymous())


def anonymous() -> int:
    """Anonymous memory of this process, KiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    return 0


def sync_all(folder: Path) -> None:
    """Bring every file below a folder to the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def build(layers: int) -> tuple[Any, Any]:
    """A model and its AdamW after one step."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    with torch.device("meta"):
        model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(layers)])
    model = model.to_empty(device="cpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.01)
            parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def tensors(model: Any, optimizer: Any) -> dict[str, Any]:
    """All of them, by name."""
    found = {f"model.{name}": value for name, value in model.state_dict().items()}
    for index, values in optimizer.state_dict()["state"].items():
        found |= {f"optimizer.{index}.{name}": value for name, value in values.items()}
    return found


def poison(model: Any, optimizer: Any) -> Callable[[], None]:
    """Overwrite what a load must bring back; returns the check that it did."""
    import torch

    wanted = {name: value.flatten()[:5].clone() for name, value in tensors(model, optimizer).items()}
    with torch.no_grad():
        for value in tensors(model, optimizer).values():
            value.zero_()

    def check() -> None:
        for name, value in tensors(model, optimizer).items():
            if not torch.equal(value.flatten()[:5], wanted[name]):
                raise SystemExit(f"{name} was not loaded")

    return check


def measure(out: Path, save: Callable[[], Any], load: Callable[[], Any], model: Any, optimizer: Any) -> Figures:
    """One save and one load."""
    start = time.perf_counter()
    with Peak() as saving:
        save()
    sync_all(out)
    durable = time.perf_counter() - start
    check = poison(model, optimizer)
    with Peak() as loading:
        load()
    check()
    return {
        "blocked s": saving.seconds, "durable s": durable, "save memory MiB": saving.mib,
        "load s": loading.seconds, "load memory MiB": loading.mib,
    }  # fmt: skip


def run_raw(out: Path, model: Any, optimizer: Any) -> Figures:
    """Plain write and read of every byte, and one copy into memory that is there."""
    import torch

    live = [value for value in tensors(model, optimizer).values() if value.ndim]

    def view(value: Any) -> memoryview:
        return memoryview(value.detach().numpy()).cast("B")

    def save() -> None:
        out.mkdir()
        with (out / "all").open("wb", buffering=0) as file:
            for value in live:
                file.write(view(value))

    def load() -> None:
        with (out / "all").open("rb", buffering=0) as file:
            for value in live:
                file.readinto(view(value))  # type: ignore[attr-defined]

    scalars = {name: value for name, value in tensors(model, optimizer).items() if not value.ndim}
    kept = {name: value.clone() for name, value in scalars.items()}

    def load_all() -> None:
        load()
        for name, value in scalars.items():
            value.copy_(kept[name])

    figures = measure(out, save, load_all, model, optimizer)
    copies = [torch.ones_like(value) for value in live]
    start = time.perf_counter()
    for copy, value in zip(copies, live, strict=True):
        copy.copy_(value)
    return {**figures, "snapshot s": time.perf_counter() - start}


def run_library(out: Path, model: Any, optimizer: Any, name: str) -> Figures:
    """save_state and load_state."""
    import importlib

    acc = importlib.import_module(name).Accelerator(cpu=True)
    model, optimizer = acc.prepare(model, optimizer)
    inner = optimizer.optimizer
    figures = measure(out, lambda: acc.save_state(out), lambda: acc.load_state(out), model, inner)
    if name == "accelkit":
        shutil.rmtree(out)
        acc.save_state(out, asynchronous=True).wait()
        shutil.rmtree(out)
        start = time.perf_counter()
        handle = acc.save_state(out, asynchronous=True)
        figures["async blocked s"] = time.perf_counter() - start
        handle.wait()
        figures["async durable s"] = time.perf_counter() - start
    return figures


def run_dcp(out: Path, model: Any, optimizer: Any) -> Figures:
    """torch.distributed.checkpoint.async_save, the second time as well."""
    import warnings

    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    warnings.filterwarnings("ignore")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dcp.async_save(tensors(model, optimizer), checkpoint_id=out).result()
    shutil.rmtree(out)
    start = time.perf_counter()
    with Peak() as saving:
        pending = dcp.async_save(tensors(model, optimizer), checkpoint_id=out)
    blocked = time.perf_counter() - start
    pending.result()
    return {"async blocked s": blocked, "save memory MiB": saving.mib}


def work(side: str, layers: int, out: Path) -> None:
    """One side, in this process; prints its figures."""
    import torch

    torch.set_num_threads(2)
    model, optimizer = build(layers)
    shutil.rmtree(out, ignore_errors=True)
    if side == "raw":
        figures = run_raw(out, model, optimizer)
    elif side == "dcp":
        figures = run_dcp(out, model, optimizer)
    else:
        figures = run_library(out, model, optimizer, side)
    print(json.dumps(figures), flush=True)
    shutil.rmtree(out, ignore_errors=True)
    os._exit(0)


def fresh(side: str, layers: int, out: Path) -> Figures | None:
    """One side in a process of its own; None where its library is not installed."""
    done = subprocess.run(
        [sys.executable, __file__, "--side", side, "--layers", str(layers), "--out", str(out)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=False,
    )
    if "No module named 'accelerate'" in done.stderr:
        return None
    if done.returncode:
        raise SystemExit(f"{side}: {done.stderr[-3000:]}")
    found: Figures = json.loads(done.stdout.splitlines()[-1])
    return found


def report(samples: dict[str, list[Figures]]) -> None:
    """A line per figure, then a line per ratio with its goal."""
    for side, rounds in samples.items():
        for figure in rounds[0]:
            values = [found[figure] for found in rounds]
            print(f"{side:<12} {figure:<18} {statistics.median(values):9.2f} ({min(values):.2f} to {max(values):.2f})")
    for side, figure, other, beside, goal in RATIOS:
        if side not in samples or other not in samples:
            continue
        ratios = [a[figure] / b[beside] for a, b in zip(samples[side], samples[other], strict=True)]
        middle = statistics.median(ratios)
        verdict = "" if goal is None else f"  goal <= {goal:g}: {'met' if middle <= goal else 'MISSED'}"
        print(f"{side} {figure} / {other} {beside}: {middle:.3f} ({min(ratios):.3f} to {max(ratios):.3f}){verdict}")
    memory = max(found["load memory MiB"] for found in samples["accelkit"])
    print(f"accelkit load memory: {memory:.1f} MiB  goal <= 64 MiB: {'met' if memory <= 64 else 'MISSED'}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("/tmp/accelkit-bench-state"))
    parser.add_argument("--side", choices=SIDES)
    arguments = parser.parse_args()
    if arguments.side:
        work(arguments.side, arguments.layers, arguments.out)
    sides, samples = list(SIDES), {side: [] for side in SIDES}
    for turn in range(arguments.rounds):
        for side in sides[turn % len(sides) :] + sides[: turn % len(sides)]:
            found = fresh(side, arguments.layers, arguments.out)
            if found is not None:
                samples[side].append(found)
    print(
        f"state of {arguments.layers * 2048 * 2049 * 12 / 2**30:.2f} GiB   [load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores]"
    )
    report({side: rounds for side, rounds in samples.items() if rounds})


if __name__ == "__main__":
    main()
