"""Big models against a peer, in one run: built empty, mapped, loaded, half on disk, run.

    python bench/big_models.py [--peer accelerate] [--folder /tmp/kitbench] [--rounds 3] [--only WORD]

Every measurement is a fresh process; those of one line alternate. A line gives both figures, their ratio and the goal. The
checkpoint (4.1 GB) is made in FOLDER and stays there. Results are compared before they are timed: outputs are equal bit for bit.
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
from importlib import import_module
from pathlib import Path
from typing import Any

OURS = "accelkit"
MIB = 1 << 20


# --- what is measured: one function for each, run in a process of its own --------------------------------------------------


def construct(library: Any, folder: Path) -> dict[str, float]:
    """Build the model without memory for the first time in a process."""
    from make_checkpoint import Decoder

    with Meter() as meter, library.init_empty_weights():
        Decoder()
    return meter.figures


def construct_again(library: Any, folder: Path) -> dict[str, float]:
    """Build it for the second time."""
    from make_checkpoint import Decoder

    with library.init_empty_weights():
        Decoder(1)
    with Meter() as meter, library.init_empty_weights():
        Decoder()
    return meter.figures


def device_map(library: Any, folder: Path) -> dict[str, float]:
    """Decide where each of 1,000 layers goes, on two devices, the CPU and the disk."""
    from torch import nn

    with library.init_empty_weights():
        model = nn.Sequential(*[nn.TransformerEncoderLayer(64, 4) for _ in range(1000)])
    limits = {0: 40 * MIB, 1: 40 * MIB, "cpu": 40 * MIB}
    with Meter() as meter:
        library.infer_auto_device_map(model, max_memory=limits, no_split_module_classes=["TransformerEncoderLayer"])
    return meter.figures


def load_to_cpu(library: Any, folder: Path) -> dict[str, float]:
    """Load the whole checkpoint to the CPU in its own dtype, the files warm."""
    import torch

    return _load(library, folder, {"": "cpu"}, dtype=torch.bfloat16)


def load_without_dtype(library: Any, folder: Path) -> dict[str, float]:
    """The same without saying the dtype, which keeps bfloat16 here and becomes float32 there."""
    return _load(library, folder, {"": "cpu"})


def load_half_on_disk(library: Any, folder: Path) -> dict[str, float]:
    """Load with half of the layers on disk; bytes that were written count."""
    import torch

    return _load(library, folder, half_on_disk(), dtype=torch.bfloat16)


def cold_start(library: Any, folder: Path) -> dict[str, float]:
    """Load to the CPU and run 64 tokens, none of the files in memory."""
    return _cold(library, folder, {"": "cpu"})


def cold_half_on_disk(library: Any, folder: Path) -> dict[str, float]:
    """Load with half of the layers on disk, then run 64 tokens with none of the files in memory."""
    return _cold(library, folder, half_on_disk(), after_load=True)


def half_on_disk() -> dict[str, str]:
    """The second half of the layers on disk."""
    from make_checkpoint import LAYERS

    blocks = {f"blocks.{number}": "cpu" if number < LAYERS // 2 else "disk" for number in range(LAYERS)}
    return {"embedding": "cpu", "norm": "cpu", "head": "cpu", **blocks}


def _load(library: Any, folder: Path, device_map: dict[str, str], **options: Any) -> dict[str, float]:
    model = _empty(library)
    with Meter() as meter:
        _dispatch(library, model, folder, device_map, **options)
    return meter.figures


def _empty(library: Any) -> Any:
    from make_checkpoint import Decoder

    with library.init_empty_weights():
        return Decoder()


def _dispatch(library: Any, model: Any, folder: Path, device_map: dict[str, str], **options: Any) -> Any:
    offload = folder / f"offload-{library.__name__}"
    made = library.load_checkpoint_and_dispatch(
        model, folder / "checkpoint", device_map=device_map, offload_folder=offload, **options
    )
    return made.eval().requires_grad_(False)


def _cold(library: Any, folder: Path, device_map: dict[str, str], *, after_load: bool = False) -> dict[str, float]:
    import torch

    model = _empty(library)
    ids = torch.randint(0, 32000, (1, 64))
    if after_load:
        model = _dispatch(library, model, folder, device_map, dtype=torch.bfloat16)
    forget(folder)
    with Meter() as meter, torch.inference_mode():
        if not after_load:
            model = _dispatch(library, model, folder, device_map, dtype=torch.bfloat16)
        model(ids)
    return meter.figures


def forward_pairs(libraries: list[Any], folder: Path) -> dict[str, dict[str, float]]:
    """Warm forwards in one process: all in memory, and half on disk with each library, in turns; seconds."""
    import torch
    from safetensors.torch import load_file

    with torch.device("meta"):
        from make_checkpoint import Decoder

        memory = Decoder()
    state = {}
    for file in sorted((folder / "checkpoint").glob("*.safetensors")):
        state.update({name: value.clone() for name, value in load_file(file).items()})
    memory.load_state_dict(state, assign=True)
    models = {"memory": memory.eval().requires_grad_(False)}
    for library in libraries:
        models[library.__name__] = _dispatch(library, _empty(library), folder, half_on_disk(), dtype=torch.bfloat16)
    result = {}
    with torch.inference_mode():
        for tokens in (64, 16, 1):
            ids = torch.randint(0, 32000, (1, tokens))
            expected = memory(ids)
            assert all(torch.equal(expected, model(ids)) for model in models.values()), "outputs differ"
            result[f"{tokens} tokens"] = _in_turns({name: lambda m=model: m(ids) for name, model in models.items()})
    return result


def _in_turns(functions: dict[str, Callable[[], Any]], rounds: int = 7) -> dict[str, float]:
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    names = list(functions)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            begin = time.perf_counter()
            functions[name]()
            seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in seconds.items()}


# --- meters ------------------------------------------------------------------------------------------------------------------


class Meter:
    """Seconds, MiB of anonymous memory at the peak, MiB written, and gc.collect calls of a block."""

    def __enter__(self) -> "Meter":
        self._collect, self._collected = gc.collect, 0
        gc.collect = self._count  # type: ignore[assignment]
        self._anonymous = self._peak = _status("RssAnon")
        self._written = _write_bytes()
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
            self._peak = max(self._peak, _status("RssAnon"))

    def __exit__(self, *_: object) -> None:
        seconds = time.perf_counter() - self._begin
        self._stop.set()
        self._thread.join()
        gc.collect = self._collect
        self.figures = {
            "seconds": seconds,
            "anonymous": (max(self._peak, _status("RssAnon")) - self._anonymous) / 1024,
            "written": (_write_bytes() - self._written) / MIB,
            "collections": float(self._collected),
        }


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1])
    raise KeyError(key)


def _write_bytes() -> int:
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.suffix in (".safetensors", ".dat")]


def forget(folder: Path) -> None:
    """Take the files out of the page cache."""
    for path in _files(folder):
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

LINES: list[tuple[Callable[..., Any], str, float]] = [
    (construct, "seconds", 0.08),
    (construct_again, "seconds", 1.0),
    (device_map, "seconds", 1.0),
    (load_to_cpu, "seconds", 0.10),
    (load_without_dtype, "seconds", 0.10),
    (load_half_on_disk, "seconds", 0.05),
    (cold_start, "seconds", 0.8),
    (cold_half_on_disk, "seconds", 0.75),
]


def main() -> int:
    """Measure and print; 1 when a goal was missed."""
    arguments = _arguments()
    if arguments.worker:
        return _work(arguments)
    folder = Path(arguments.folder)
    subprocess.run([sys.executable, Path(__file__).with_name("make_checkpoint.py"), folder / "checkpoint"], check=True)
    missed = False
    for function, unit, goal in LINES:
        if arguments.only in function.__name__:
            missed |= _line(function, unit, goal, arguments)
    if arguments.only in "forward":
        missed |= _forward_lines(arguments)
    return int(missed)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", default="accelerate", help="a package with the same functions")
    parser.add_argument(
        "--folder", default="/tmp/kitbench", help="where the checkpoint is made (9 GB with offloaded copies)"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="only lines whose name holds this")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    return parser.parse_args()


def _work(arguments: argparse.Namespace) -> int:
    name, *packages = arguments.worker
    libraries = [import_module(package) for package in packages]
    function = globals()[name]
    folder = Path(arguments.folder)
    print(json.dumps(function(libraries if name == "forward_pairs" else libraries[0], folder)))
    for package in packages:
        shutil.rmtree(folder / f"offload-{package}", ignore_errors=True)
    return 0


def _run(arguments: argparse.Namespace, *worker: str) -> Any:
    warm(Path(arguments.folder))
    command = [sys.executable, __file__, "--folder", arguments.folder, "--worker", *worker]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def _line(function: Callable[..., Any], unit: str, goal: float, arguments: argparse.Namespace) -> bool:
    figures: dict[str, list[dict[str, float]]] = {OURS: [], arguments.peer: []}
    for turn in range(arguments.rounds):
        for package in (OURS, arguments.peer)[:: 1 if turn % 2 else -1]:
            figures[package].append(_run(arguments, function.__name__, package))
    ratio = statistics.median(
        ours[unit] / peer[unit] for ours, peer in zip(figures[OURS], figures[arguments.peer], strict=True)
    )
    shown = "; ".join(f"{package} {_show(rows)}" for package, rows in figures.items())
    print(
        f"{function.__name__:20} {ratio:7.4f} x (goal <= {goal}) {'ok' if ratio <= goal else 'MISSED'}: {shown}",
        flush=True,
    )
    return ratio > goal


def _show(rows: list[dict[str, float]]) -> str:
    middle = {unit: statistics.median(row[unit] for row in rows) for unit in rows[0]}
    return (
        f"{middle['seconds']:.3f} s, {middle['anonymous']:.1f} MiB anonymous, {middle['written']:.0f} MiB written, "
        f"{middle['collections']:.0f} collections"
    )


def _forward_lines(arguments: argparse.Namespace) -> bool:
    missed = False
    for name, seconds in _run(arguments, "forward_pairs", OURS, arguments.peer).items():
        for base, goal in (("memory", 1.35), (arguments.peer, 0.55)):
            ratio = seconds[OURS] / seconds[base]
            missed |= ratio > goal
            print(
                f"forward, {name:10} {ratio:7.4f} x {base} (goal <= {goal}) {'ok' if ratio <= goal else 'MISSED'}: "
                f"{OURS} {seconds[OURS]:.3f} s, {base} {seconds[base]:.3f} s",
                flush=True,
            )
    return missed


if __name__ == "__main__":
    sys.exit(main())
