"""Big models against a peer, in one run: built empty, mapped, loaded, half on disk, run.

    python bench/big_models.py [--peer accelerate] [--folder /tmp/kitbench] [--rounds 3] [--only WORD]

Every figure is taken in a fresh process, the two libraries in turns; warm forwards share one process. The checkpoint (4.1 GB) is
made in FOLDER and stays there; the peer's offloaded copies (4 GB) are removed. Outputs are compared bit for bit before they are timed.
"""

import argparse
import gc
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from measure import environment, headline, interleave, paired, show, timed

OURS = "accelkit"
MIB = 1 << 20
Figures = dict[str, float]


# --- what is measured: each runs in a process of its own ---------------------------------------------------------------------


def construct(library: Any, _: Path) -> Figures:
    """Build the model without memory, for the first time in a process."""
    from make_checkpoint import Decoder

    with Meter() as meter, library.init_empty_weights():
        Decoder()
    return meter.figures


def construct_again(library: Any, _: Path) -> Figures:
    """Build it for the second time."""
    from make_checkpoint import Decoder

    with library.init_empty_weights():
        Decoder(1)
    with Meter() as meter, library.init_empty_weights():
        Decoder()
    return meter.figures


def device_map(library: Any, _: Path) -> Figures:
    """Decide where each of 1,000 layers goes, on two devices, the CPU and the disk."""
    from torch import nn

    with library.init_empty_weights():
        model = nn.Sequential(*[nn.TransformerEncoderLayer(64, 4) for _ in range(1000)])
    limits = {0: 40 * MIB, 1: 40 * MIB, "cpu": 40 * MIB}
    with Meter() as meter:
        library.infer_auto_device_map(model, max_memory=limits, no_split_module_classes=["TransformerEncoderLayer"])
    return meter.figures


def load_to_cpu(library: Any, folder: Path) -> Figures:
    """Load the whole checkpoint to the CPU in its own dtype, the files warm."""
    import torch

    return _load(library, folder, {"": "cpu"}, dtype=torch.bfloat16)


def load_without_dtype(library: Any, folder: Path) -> Figures:
    """The same without saying the dtype, which keeps bfloat16 here and becomes float32 there."""
    return _load(library, folder, {"": "cpu"})


def load_half_on_disk(library: Any, folder: Path) -> Figures:
    """Load with half of the layers on disk."""
    import torch

    return _load(library, folder, half_on_disk(), dtype=torch.bfloat16)


def cold_start(library: Any, folder: Path) -> Figures:
    """Load to the CPU and run 64 tokens, none of the files in memory."""
    import torch

    model, ids = empty_model(library), torch.randint(0, 32000, (1, 64))
    forget(folder)
    with Meter() as meter, torch.inference_mode():
        dispatched(library, model, folder, {"": "cpu"}, dtype=torch.bfloat16)(ids)
    return meter.figures


def cold_half_on_disk(library: Any, folder: Path) -> Figures:
    """Run 64 tokens with half of the layers on disk, none of the files in memory."""
    import torch

    ids = torch.randint(0, 32000, (1, 64))
    model = dispatched(library, empty_model(library), folder, half_on_disk(), dtype=torch.bfloat16)
    forget(folder)
    with Meter() as meter, torch.inference_mode():
        model(ids)
    return meter.figures


def half_on_disk() -> dict[str, str]:
    """A device map: the second half of the layers on disk."""
    from make_checkpoint import LAYERS

    blocks = {f"blocks.{number}": "cpu" if number < LAYERS // 2 else "disk" for number in range(LAYERS)}
    return {"embedding": "cpu", "norm": "cpu", "head": "cpu", **blocks}


def _load(library: Any, folder: Path, places: dict[str, str], **options: Any) -> Figures:
    model = empty_model(library)
    with Meter() as meter:
        dispatched(library, model, folder, places, **options)
    return meter.figures


def empty_model(library: Any) -> Any:
    """The model without memory."""
    from make_checkpoint import Decoder

    with library.init_empty_weights():
        return Decoder()


def dispatched(library: Any, model: Any, folder: Path, places: dict[str, str], **options: Any) -> Any:
    """The model with the checkpoint in it, ready to run."""
    offload = folder / f"offload-{library.__name__}"
    made = library.load_checkpoint_and_dispatch(
        model, folder / "checkpoint", device_map=places, offload_folder=offload, **options
    )
    return made.eval().requires_grad_(False)


Rounds = dict[str, dict[str, list[float]]]
"""What was run -> side -> seconds of each round."""


def forward_pairs(libraries: list[Any], folder: Path, rounds: int) -> Rounds:
    """Warm forwards in one process: all in memory, and half on disk with each library."""
    import torch

    def placed(library: Any) -> Any:
        return dispatched(library, empty_model(library), folder, half_on_disk(), dtype=torch.bfloat16)

    return _pairs(libraries, folder, rounds, placed)


def offload_pairs(libraries: list[Any], folder: Path, rounds: int) -> Rounds:
    """Warm forwards in one process: all in memory, and offloaded to the CPU with each library."""
    import torch

    def placed(library: Any) -> Any:
        model = dispatched(library, empty_model(library), folder, {"": "cpu"}, dtype=torch.bfloat16)
        return library.cpu_offload(model, execution_device=torch.device("cpu"))

    return _pairs(libraries, folder, rounds, placed)


def _pairs(libraries: list[Any], folder: Path, rounds: int, placed: Callable[[Any], Any]) -> Rounds:
    import torch
    from make_checkpoint import Decoder
    from safetensors.torch import load_file

    with torch.device("meta"):
        memory = Decoder()
    state = {}
    for file in sorted((folder / "checkpoint").glob("*.safetensors")):
        state.update({name: value.clone() for name, value in load_file(file).items()})
    memory.load_state_dict(state, assign=True)
    models = {"memory": memory.eval().requires_grad_(False)}
    models.update({library.__name__: placed(library) for library in libraries})
    result = {}
    with torch.inference_mode():
        for tokens in (64, 16, 1):
            ids = torch.randint(0, 32000, (1, tokens))
            expected = memory(ids)
            assert all(torch.equal(expected, model(ids)) for model in models.values()), "outputs differ"
            result[f"{tokens} tokens"] = interleave(
                {name: timed(partial(model, ids)) for name, model in models.items()}, rounds
            )
    return result


# --- meters ------------------------------------------------------------------------------------------------------------------


class Meter:
    """Seconds, MiB of anonymous memory at the peak, MiB written, and gc.collect calls of a block."""

    figures: Figures

    def __enter__(self) -> "Meter":
        self._collect, self._collected = gc.collect, 0
        gc.collect = self._count  # type: ignore[assignment]
        self._anonymous = self._peak = anonymous()
        self._written = written()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        self._begin = time.perf_counter()
        return self

    def _count(self, *arguments: int) -> int:
        self._collected += 1
        return self._collect(*arguments)

    def _watch(self) -> None:
        while not self._stop.wait(0.004):
            self._peak = max(self._peak, anonymous())

    def __exit__(self, *_: object) -> None:
        seconds = time.perf_counter() - self._begin
        self._stop.set()
        self._thread.join()
        gc.collect = self._collect
        self.figures = {
            "seconds": seconds,
            "MiB anonymous": (max(self._peak, anonymous()) - self._anonymous) / MIB,
            "MiB written": (written() - self._written) / MIB,
            "collections": float(self._collected),
        }


def anonymous() -> int:
    """Bytes of this process's memory that no file stands for."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def written() -> int:
    """Bytes that this process gave to the disk."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


def forget(folder: Path) -> None:
    """Take the files out of the page cache."""
    for path in folder.rglob("*"):
        if path.suffix in (".safetensors", ".dat"):
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def warm(folder: Path) -> None:
    """Bring the checkpoint into the page cache."""
    buffer = bytearray(8 * MIB)
    for path in (folder / "checkpoint").glob("*.safetensors"):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


# --- the run -----------------------------------------------------------------------------------------------------------------

GOALS: list[tuple[Callable[[Any, Path], Figures], float | None]] = [
    (construct, 0.08),
    (construct_again, 1.0),
    (device_map, None),
    (load_to_cpu, 0.10),
    (load_without_dtype, 0.10),
    (load_half_on_disk, 0.05),
    (cold_start, 0.8),
    (cold_half_on_disk, 0.75),
]
"""What is measured, and the ratio to the peer's seconds that is aimed at."""
PAIRS = {"forward_pairs": 0.55, "offload_pairs": 1.0}
"""Of those that share a process."""


def main() -> None:
    """Measure and print."""
    arguments = _arguments()
    folder = Path(arguments.folder)
    if arguments.worker:
        _work(arguments.worker, folder, arguments.rounds)
        return
    subprocess.run([sys.executable, Path(__file__).with_name("make_checkpoint.py"), folder / "checkpoint"], check=True)
    for function, goal in GOALS:
        if arguments.only in function.__name__:
            _show(function, goal, arguments)
    for name, goal in PAIRS.items():
        if arguments.only in name:
            _show_pairs(name, goal, arguments)


def _show_pairs(pairs: str, goal: float, arguments: argparse.Namespace) -> None:
    headline(str(globals()[pairs].__doc__))
    for name, seconds in _run(arguments, pairs, OURS, arguments.peer).items():
        show(f"{name}: {OURS} / all in memory", paired(seconds[OURS], seconds["memory"]), goal=1.35)
        show(f"{name}: {OURS} / {arguments.peer}", paired(seconds[OURS], seconds[arguments.peer]), goal=goal)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", default="accelerate", help="a package with the same functions")
    parser.add_argument("--folder", default="/tmp/kitbench", help="where the checkpoint is made (9 GB at the most)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="only what has this in its name")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    return parser.parse_args()


def _work(words: list[str], folder: Path, rounds: int) -> None:
    name, *packages = words
    libraries = [import_module(package) for package in packages]
    function = globals()[name]
    print(json.dumps(function(libraries, folder, rounds) if name in PAIRS else function(libraries[0], folder)))
    for package in packages:
        shutil.rmtree(folder / f"offload-{package}", ignore_errors=True)


def _run(arguments: argparse.Namespace, *worker: str) -> Any:
    warm(Path(arguments.folder))
    options = ["--folder", arguments.folder, "--rounds", str(arguments.rounds)]
    command = [sys.executable, __file__, *options, "--worker", *worker]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment()
    )
    return json.loads(done.stdout.splitlines()[-1])


def _show(function: Callable[[Any, Path], Figures], goal: float | None, arguments: argparse.Namespace) -> None:
    rows: dict[str, list[Figures]] = {OURS: [], arguments.peer: []}

    def side(package: str) -> float:
        rows[package].append(_run(arguments, function.__name__, package))
        return rows[package][-1]["seconds"]

    headline(str(function.__doc__))
    sides = {package: partial(side, package) for package in rows}
    seconds = interleave(sides, arguments.rounds, warmup=0)
    show(f"{function.__name__}: {OURS} / {arguments.peer}", paired(seconds[OURS], seconds[arguments.peer]), goal=goal)
    for package, figures in rows.items():
        middle = {unit: statistics.median(row[unit] for row in figures) for unit in figures[0]}
        print(f"  {package}: " + ", ".join(f"{value:.3f} {unit}" for unit, value in middle.items()), flush=True)


if __name__ == "__main__":
    main()
