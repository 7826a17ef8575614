"""Collective operations between processes of which each has an XLA device: copies on the CPU travel. Run once per rank, over gloo.

The runtime itself refuses such a run on CPUs, where gradients could not be averaged; what carries gathered tensors is the same on TPUs.
"""

import torch
import torch.distributed as dist
import torch_xla

from accelkit.runtime.collectives.nested import NestedCollectives
from accelkit.runtime.collectives.torch_dist import CopyingCollectives

if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank, device = dist.get_rank(), torch_xla.device()
    operations = NestedCollectives(CopyingCollectives(), torch.device("cpu"))
    mine = torch.full((2, 3), float(rank), device=device)
    assert operations.gather({"x": mine})["x"].tolist() == [[0.0] * 3] * 2 + [[1.0] * 3] * 2
    assert operations.gather(mine).device == device
    assert operations.reduce(mine, "mean").tolist() == [[0.5] * 3] * 2
    assert operations.reduce(mine, "max").tolist() == [[1.0] * 3] * 2
    assert operations.pad(mine[: rank + 1], dim=0).shape == (2, 3)
    assert operations.gather_object([rank]) == [0, 1]
    large = torch.full((70_000,), float(rank), device=device)
    assert operations.gather(large).sum().item() == 70_000
    assert operations.broadcast(mine, 1).tolist() == [[1.0] * 3] * 2
    assert mine.device == device
    dist.destroy_process_group()
