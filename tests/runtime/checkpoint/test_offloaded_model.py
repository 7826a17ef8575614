"""A model that lies on disk, saved for others to read: whole, in any kind of files, and never in memory as a whole."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from accelkit import Accelerator, init_empty_weights, load_checkpoint_and_dispatch
from tests.runtime.checkpoint.test_model_files import read
from tests.support.checkpoints import Tied
from tests.support.kit import ROOT

pytestmark = pytest.mark.slow


def dispatched(folder: Path, device_map: dict[str, str]) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A model placed by a map from a checkpoint in `folder`, and its state in memory."""
    torch.manual_seed(1)
    whole = Tied(12)
    state = {name: value.clone() for name, value in whole.state_dict().items()}
    folder.mkdir(exist_ok=True)
    save_file({name: value for name, value in state.items() if name != "head.weight"}, folder / "model.safetensors")
    with init_empty_weights():
        model = Tied(12)
    return load_checkpoint_and_dispatch(model, folder / "model.safetensors", device_map=device_map), state


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("size", [1000, "2KB", "10GB"])
def test_a_model_on_disk_is_written_whole(tmp_path: Path, size: int | str, safe: bool) -> None:
    """All of it on disk or a part; beside its own files or over them; it works as before afterwards."""
    names = ["embed", "norm", "head", "flags", "nothing"]
    for count in range(1, len(names) + 1):
        device_map = {name: "disk" if index < count else "cpu" for index, name in enumerate(names)}
        for target in ("other", "own"):
            source = tmp_path / f"{count}" / "own"
            source.parent.mkdir(exist_ok=True)
            model, state = dispatched(source, device_map)
            into = source.parent / target
            Accelerator().save_model(model, into, max_shard_size=size, safe_serialization=safe)
            found = read(into)
            assert found.keys() == state.keys() - ({"head.weight"} if safe else set()), (count, target)
            assert all(torch.equal(value, state[name]) for name, value in found.items())
            for path in into.iterdir():
                path.unlink()


SCRIPT = """
import resource, sys
from pathlib import Path
import torch
from safetensors.torch import save_file
from torch import nn
from accelkit import Accelerator, init_empty_weights, load_checkpoint_and_dispatch

folder = Path(sys.argv[1])
with init_empty_weights():
    model = nn.Sequential(*[nn.Linear(2048, 2048, bias=False) for _ in range(16)])  # 256 MiB
model = load_checkpoint_and_dispatch(model, folder / "model.safetensors", device_map={"": "disk"})
acc = Accelerator()
used = 1024 * int(next(l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith("VmData")).split()[1])
resource.setrlimit(resource.RLIMIT_DATA, (used + 96 * 2**20,) * 2)
acc.save_model(model, folder / "out", max_shard_size="100MB")
try:
    torch.ones(2**26)
except RuntimeError:
    print("the limit holds")
"""


def test_a_model_larger_than_memory_is_saved(tmp_path: Path) -> None:
    """With room for a third of the weights, and the threads, all of them are saved."""
    weights = {f"{index}.weight": torch.full((2048, 2048), float(index)) for index in range(16)}
    save_file(weights, tmp_path / "model.safetensors")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-2000:]
    assert "the limit holds" in done.stdout
    found: dict[str, torch.Tensor] = {}
    for path in (tmp_path / "out").glob("*.safetensors"):
        found |= load_file(path)
    assert found.keys() == weights.keys()
    assert all(torch.equal(value, weights[name]) for name, value in found.items())
