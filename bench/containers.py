"""What running in containers through kit costs over `docker run` by hand, and how fast Ctrl-C is.

    python bench/containers.py [ROUNDS]

Two jobs of two ranks each in the image `accelkit-cpu`, started by kit, and by hand as two processes in one container with the same
limits: the smallest one (import torch, form a gloo group, reduce one number), and examples/digits.py from start to checkpoint.
Needs an engine and the image (ci/build-cpu).
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from measure import BIN, ROOT, Spread, command, environment, headline, interleave, paired, show, timed

IMAGE = "accelkit-cpu:latest"
HELLO = """import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
assert total.item() == 2
if dist.get_rank() == 0:
    with open("reduced", "w") as file:
        file.write(str(time.time()))
dist.destroy_process_group()
"""
BY_HAND = "RANK=0 LOCAL_RANK=0 python {script} & RANK=1 LOCAL_RANK=1 python {script} && wait $!"
RUNTIME = "/opt/runtime"
SLEEPS = "import os, time; open('up' + os.environ['RANK'], 'w').close(); time.sleep(600)"


def by_hand(folder: Path, script: str) -> None:
    """The same two ranks in one container, without kit."""
    variables = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": RUNTIME,
    }
    options = [f"--env={name}={value}" for name, value in variables.items()]
    command(
        ["docker", "run", "--rm", "--init", "--cap-drop=ALL", "--shm-size=1g", f"--user={os.getuid()}:{os.getgid()}",
         f"--volume={folder}:{folder}", f"--volume={ROOT / 'accelkit'}:{RUNTIME}/accelkit:ro", f"--workdir={folder}", *options, IMAGE,
         "sh", "-c", BY_HAND.format(script=script)],
    )  # fmt: skip


def interrupted(folder: Path, nodes: int) -> float:
    """Seconds from Ctrl-C to the end of kit; containers must be gone by then."""
    for mark in folder.glob("up*"):
        mark.unlink()
    process = subprocess.Popen(
        [BIN / "kit", "run", "--image", "cpu", "--nodes", str(nodes), "sleeps.py"], cwd=folder, env=environment(),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while len(list(folder.glob("up*"))) < nodes:
        time.sleep(0.02)
    start = time.perf_counter()
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    took = time.perf_counter() - start
    run_id = max((folder / ".accelkit" / "runs").iterdir()).name
    left = subprocess.check_output(["docker", "ps", "-aq", "--filter", f"label=accelkit.run={run_id}"], text=True)
    assert not left, left
    return took


def digits(folder: Path, rounds: int) -> None:
    """A real job, from its start to its checkpoint."""
    shutil.copy(ROOT / "examples" / "digits.py", folder)
    sides: dict[str, Callable[[], None]] = {
        "docker run by hand": lambda: by_hand(folder, "digits.py"),
        "kit run --image cpu": lambda: command(
            [BIN / "kit", "run", "--image", "cpu", "--procs-per-node", "2", "digits.py"], cwd=folder
        ),
    }
    samples = interleave({name: timed(work) for name, work in sides.items()}, rounds)
    for name, seconds in samples.items():
        show(f"examples/digits.py, {name}", Spread.of(seconds), " s")
    show("kit / docker run, examples/digits.py", paired(*reversed(samples.values())), "", 1.15)


def main() -> None:
    """Measure and print."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    folder = Path(tempfile.mkdtemp(prefix="accelkit-bench-"))
    (folder / "hello.py").write_text(HELLO)
    (folder / "sleeps.py").write_text(SLEEPS)
    works: dict[str, Callable[[], None]] = {
        "docker run by hand": lambda: by_hand(folder, "hello.py"),
        "kit run --image cpu": lambda: command(
            [BIN / "kit", "run", "--image", "cpu", "--procs-per-node", "2", "hello.py"], cwd=folder
        ),
        "kit run --image cpu --nodes 2": lambda: command(
            [BIN / "kit", "run", "--image", "cpu", "--nodes", "2", "--procs-per-node", "1", "hello.py"], cwd=folder
        ),
    }
    reduced: dict[str, list[float]] = {name: [] for name in works}

    def side(name: str) -> Callable[[], float]:
        def run() -> float:
            start = time.time()
            works[name]()
            reduced[name].append(float((folder / "reduced").read_text()) - start)
            return time.time() - start

        return run

    headline("two ranks in containers")
    samples = interleave({name: side(name) for name in works}, rounds)
    for name, seconds in samples.items():
        show(f"{name}: start to end", Spread.of(seconds), " s")
        show(f"{name}: until the first collective", Spread.of(reduced[name][-rounds:]), " s")
    show("kit / docker run", paired(samples["kit run --image cpu"], samples["docker run by hand"]), "", 1.15)
    digits(folder, rounds)
    for nodes in (1, 2):
        show(f"Ctrl-C to clean, {nodes} node(s)", Spread.of([interrupted(folder, nodes) for _ in range(3)]), " s", 10)


if __name__ == "__main__":
    main()
