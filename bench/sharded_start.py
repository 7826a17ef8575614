"""How much memory a rank needs to start a sharded model from a checkpoint of several files, against the model's size.

python bench/sharded_start.py --gb 4 --ranks 2 --folder /tmp/sharded-start
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn

from accelkit import Accelerator, FullyShardedDataParallelPlugin, init_empty_weights, load_checkpoint_in_model

WIDTH = 4096
LAYER = 2 * WIDTH * WIDTH
"""Bytes of a layer in bf16."""


def build(gigabytes: float) -> nn.Module:
    """Square layers of that size together, on the meta device."""
    with init_empty_weights():
        layers = [
            nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16) for _ in range(int(gigabytes * 1e9 / LAYER))
        ]
        return nn.Sequential(*layers)


def write(gigabytes: float, folder: Path) -> None:
    """A checkpoint of files of about 1 GB, with an index, a layer in memory at a time."""
    from safetensors.torch import save_file

    names = list(build(gigabytes).state_dict())
    folder.mkdir(parents=True)
    where = {}
    for start in range(0, len(names), 32):
        part = {
            name: torch.full((WIDTH, WIDTH), int(name.split(".")[0]) / 64, dtype=torch.bfloat16)
            for name in names[start : start + 32]
        }
        file = f"model-{start // 32:05d}.safetensors"
        save_file(part, folder / file)
        where |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": len(names) * LAYER}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def anonymous() -> int:
    """Bytes of this process that no file stands behind."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) * 1024


def start(gigabytes: float, folder: Path) -> None:
    """On a rank: start the model while another thread looks at the memory; print the most of it."""
    import threading

    acc = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(module_names_to_wrap="*"))
    base, most, done = anonymous(), [0], threading.Event()

    def look() -> None:
        while not done.wait(0.01):
            most[0] = max(most[0], anonymous())

    watcher = threading.Thread(target=look)
    watcher.start()
    begun = time.perf_counter()
    model = acc.prepare(build(gigabytes))
    load_checkpoint_in_model(model, folder, strict=True)
    seconds = time.perf_counter() - begun
    done.set()
    watcher.join()
    assert all(float(layer.weight.detach().to_local()[0, 0]) == index / 64 for index, layer in enumerate(model))
    size = gigabytes * 1e9
    print(
        f"rank {acc.process_index}: {seconds:.1f} s, peak {most[0] / size:.2f} of the model ({(most[0] - base) / size:.2f} above the start)"
    )


def main() -> None:
    """Write the checkpoint where it is not there yet, then start the ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=4.0)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args()
    if "RANK" in os.environ:
        start(given.gb, given.folder)
        return
    if not given.folder.exists():
        write(given.gb, given.folder)
    world = {"WORLD_SIZE": str(given.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29871", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, *sys.argv], env={**os.environ, **world, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank in range(given.ranks)
    ]
    sys.exit(max(process.wait() for process in ranks))


if __name__ == "__main__":
    main()
