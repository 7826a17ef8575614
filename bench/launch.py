"""How long launching two CPU ranks takes: kit, torchrun, and the bare spawn that nothing can beat.

    python bench/launch.py [ROUNDS]

The ranks import torch, form a gloo group and reduce one number. `accelerate launch --cpu --num_processes 2` is not among the
sides: it starts one process.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from measure import BIN, Spread, command, environment, free_port, headline, interleave, paired, rank_variables, show

HELLO = """import time; first = time.time()
import json, os
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
assert total.item() == dist.get_world_size() == 2
if dist.get_rank() == 0:
    with open(os.environ["HELLO_OUT"], "w") as file:
        json.dump([first, time.time()], file)
dist.destroy_process_group()
"""
MANY = ("kit / bare", "torchrun / bare", "kit / torchrun")


def spawn(script: Path, env: dict[str, str]) -> None:
    """Two ranks, as somebody would start them by hand."""
    port = free_port()
    started = [
        subprocess.Popen(
            [sys.executable, script], env=environment(env | rank_variables(rank, 2, port)),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for rank in range(2)
    ]  # fmt: skip
    codes = [process.wait() for process in started]
    assert codes == [0, 0], codes


def main() -> None:
    """Measure and print."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    folder = Path(tempfile.mkdtemp(prefix="accelkit-bench-"))
    script, out = folder / "hello.py", folder / "out.json"
    script.write_text(HELLO)
    env = {"HELLO_OUT": str(out), "OMP_NUM_THREADS": "1"}
    sides: dict[str, Callable[[], object]] = {
        "bare": lambda: spawn(script, env),
        "kit": lambda: command([BIN / "kit", "run", "--on", "local", "--procs-per-node", "2", "hello.py"], env, folder),
        "torchrun": lambda: command(
            [BIN / "torchrun", "--nproc-per-node", "2", "--master-port", str(free_port()), script], env, folder
        ),
    }
    phases: dict[str, list[tuple[float, float, float]]] = {name: [] for name in sides}

    def side(name: str) -> Callable[[], float]:
        def run() -> float:
            start = time.time()
            sides[name]()
            end = time.time()
            first, reduced = json.loads(out.read_text())
            phases[name].append((first - start, reduced - start, end - reduced))
            return end - start

        return run

    headline("launching two CPU ranks")
    samples = interleave({name: side(name) for name in sides}, rounds)
    for name, seconds in samples.items():
        show(f"{name}: start to end", Spread.of(seconds), " s")
        firsts, reduced, ends = zip(*phases[name][-rounds:], strict=True)
        goal = 250.0 if name == "kit" else None
        show(f"{name}: until the first line of the script", Spread.of(firsts).times(1e3), " ms", goal)
        show(f"{name}: until the first collective", Spread.of(reduced), " s")
        show(f"{name}: from the last line to the end", Spread.of(ends), " s")
    for pair, goal in zip(MANY, (1.10, None, None), strict=True):
        over, under = pair.split(" / ")
        show(pair, paired(samples[over], samples[under]), "", goal)


if __name__ == "__main__":
    main()
