"""Memory that the ranks of one machine share, where one of them ends."""

import subprocess
import sys

import pytest
import torch

from accelkit.runtime.collectives.shared import SharedMemory

OWNER = """
import os, sys
from accelkit.runtime.collectives.shared import SharedMemory
memory = SharedMemory.create(b"t" * 32)
area, place = memory.place(2 << 20)  # more than the first region holds: a new one
area.fill_(7)
print(os.getpid(), *place, flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_what_a_rank_that_has_ended_wrote_is_a_lost_peer() -> None:
    """A region is read while its owner lives, and after; one that was not opened in time is the same error as a closed connection."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid, file, half, offset = map(int, owner.stdout.readline().split())
    early, late = (SharedMemory.create(b"o" * 32) for _ in range(2))
    assert early is not None
    assert late is not None
    early.owners = late.owners = [0, pid]
    assert torch.equal(early.read(1, file, half, offset, 2 << 20), torch.full((2 << 20,), 7, dtype=torch.uint8))
    owner.communicate("")

    assert early.read(1, file, half, offset, 1).item() == 7
    with pytest.raises(RuntimeError, match="Connection closed by peer: rank 1 has ended"):
        late.read(1, file, half, offset, 1)
