"""What load_state takes beside the state that is there already."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

MOST = 64
"""MiB of anonymous memory."""
LOADER = """
import sys, threading, time, torch
from accelkit import Accelerator

def anonymous():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")) // 1024

acc = Accelerator(cpu=True)
model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048, bias=False) for _ in range(6)))
optimizer = torch.optim.Adam(model.parameters())
model, optimizer = acc.prepare(model, optimizer)
for _ in range(2):
    acc.backward(model(torch.ones(1, 2048)).sum())
    optimizer.step()
optimizer.zero_grad(set_to_none=False)
acc.save_state(sys.argv[1])
with torch.no_grad():
    for parameter in model.parameters():
        parameter.zero_()
before, peak, over = anonymous(), [0], threading.Event()

def watch():
    while not over.wait(0.001):
        peak[0] = max(peak[0], anonymous())

watcher = threading.Thread(target=watch)
watcher.start()
acc.load_state(sys.argv[1])
over.set()
watcher.join()
assert all(parameter.abs().sum() > 0 for parameter in model.parameters())
print(max(peak[0], anonymous()) - before)
"""


def test_loading_takes_a_bounded_memory_beside_the_live_state(tmp_path: Path) -> None:
    """A state of 288 MiB (weights and both moments) is loaded with less than MOST of anonymous memory more, at its peak."""
    done = subprocess.run(
        [sys.executable, "-c", LOADER, str(tmp_path / "state")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < MOST
