"""A disk that is full while weights are written to it: a real one, and a limit on the size of files."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

pytestmark = pytest.mark.slow

SCRIPT = """
import json, resource, sys
from pathlib import Path
import torch
from torch import nn
from accelkit import disk_offload, init_empty_weights, load_checkpoint_and_dispatch
from accelkit.utils import OffloadedWeightsLoader, offload_state_dict

folder, how, limit = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
small = {"old": torch.arange(3.0), "0.weight": torch.full((2, 2), 7.0)}
offload_state_dict(folder, small)
before = sorted(path.name for path in folder.iterdir())
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
model = nn.Sequential(nn.Linear(16, 16), nn.Linear(100, 200))
values = {name: value.clone() for name, value in model.state_dict().items()}
try:
    if how == "offload":
        disk_offload(model, folder)
    else:
        with init_empty_weights():
            model = nn.Sequential(nn.Linear(16, 16), nn.Linear(100, 200))
        load_checkpoint_and_dispatch(model, sys.argv[4], {"": "disk"}, offload_folder=folder, dtype=torch.float64)
    said = ""
except OSError as error:
    said = str(error)
untouched = all(value.is_meta if how == "load" else torch.equal(value, values[name]) for name, value in model.state_dict().items())
hooks = any(hasattr(module, "_hf_hook") for module in model.modules())
read = OffloadedWeightsLoader(save_folder=folder)
kept = list(read) == list(small) and all(torch.equal(read[name], value) for name, value in small.items())
after = sorted(path.name for path in folder.iterdir())
print(json.dumps({"said": said, "same": after == before, "kept": kept, "untouched": untouched, "hooks": hooks}))
"""


def run(prefix: Sequence[str], folder: Path, how: str, limit: int, checkpoint: Path) -> dict[str, Any]:
    """What the script found, in a process of its own."""
    command = [*prefix, sys.executable, "-c", SCRIPT, str(folder), how, str(limit), str(checkpoint)]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def checkpoint(folder: Path) -> Path:
    """Of the model that the script builds, in another dtype than it is loaded in."""
    save_file(nn.Sequential(nn.Linear(16, 16), nn.Linear(100, 200)).state_dict(), folder / "model.safetensors")
    return folder / "model.safetensors"


def check(found: dict[str, Any]) -> None:
    """The model is as it was, without hooks; the folder has what it had, also where names are the same."""
    assert found.pop("said")
    assert found == {"same": True, "kept": True, "untouched": True, "hooks": False}


@pytest.mark.parametrize("how", ["offload", "load"])
def test_a_limit_on_the_size_of_files(tmp_path: Path, how: str) -> None:
    """The first tensors fit, a later one does not."""
    found = run((), tmp_path / "offload", how, 8000, checkpoint(tmp_path))

    assert "1.weight.dat cannot be written: File too large" in found["said"]
    check(found)


@pytest.mark.parametrize("how", ["offload", "load"])
def test_a_disk_that_is_full(tmp_path: Path, how: str) -> None:
    """A file system of 64 KiB in the memory of a namespace of its own; the error says what is needed and what is left."""
    folder = tmp_path / "offload"
    folder.mkdir()
    mount = f'mount -t tmpfs -o size=64k none "{folder}" && exec "$@"'
    prefix = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    try:
        subprocess.run([*prefix, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this user may mount no file system: {error}")
    found = run(prefix, folder, how, 0, checkpoint(tmp_path))

    assert "1.weight.dat needs " in found["said"]
    assert "and the disk has " in found["said"]
    check(found)


CAST = """
import sys
import torch
from torch import nn
from accelkit import init_empty_weights, load_checkpoint_in_model

def anonymous():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")) // 1024

with init_empty_weights():
    model = nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(40)])
torch.ones(1 << 20).bfloat16()
peak, before, put = [], anonymous(), torch.Tensor.to
torch.Tensor.to = lambda *args, **named: (put(*args, **named), peak.append(anonymous()))[0]
load_checkpoint_in_model(model, sys.argv[1], dtype=torch.bfloat16)
print(max(peak) - before)
"""


def test_a_cast_holds_one_tensor_twice_not_all(tmp_path: Path) -> None:
    """160 MiB that become 80 take little more than 80 of this process's own memory at any time."""
    save_file({f"{n}.weight": torch.zeros(1024, 1024) for n in range(40)}, tmp_path / "model.safetensors")
    done = subprocess.run([sys.executable, "-c", CAST, str(tmp_path)], capture_output=True, check=True, text=True)

    assert 70 <= int(done.stdout) <= 96
