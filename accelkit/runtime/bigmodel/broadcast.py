"""A checkpoint that rank 0 reads for all ranks."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from accelkit.runtime.bigmodel.checkpoint import Checkpoint, Stored, open_checkpoint
from accelkit.runtime.bigmodel.failures import CheckpointFileError


def read_on_rank_0(path: str | Path, copy: bool) -> Checkpoint:
    """The checkpoint as rank 0 sees it. Reading a tensor is a collective operation: all ranks read in the same order.

    What rank 0 cannot open raises CheckpointFileError on every rank.
    """
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return open_checkpoint(path, copy=copy)
    opened: Checkpoint | None = None
    told: list[Any] = [None]
    if dist.get_rank() == 0:
        try:
            opened = open_checkpoint(path, copy=copy)
            told = [{name: (stored.dtype, stored.shape, stored.file) for name, stored in opened.tensors.items()}]
        except CheckpointFileError as error:
            told = [str(error)]
    dist.broadcast_object_list(told, src=0)
    if isinstance(told[0], str):
        raise CheckpointFileError(told[0])
    sources = {} if opened is None else opened.tensors
    return Checkpoint(Path(path), {name: _shared(entry, sources.get(name)) for name, entry in told[0].items()})


def _shared(entry: tuple[torch.dtype, tuple[int, ...], Path], source: Stored | None) -> Stored:
    dtype, shape, file = entry

    def read() -> torch.Tensor:
        value = torch.empty(shape, dtype=dtype) if source is None else source.read()
        if not value.numel():
            return value
        sent = value.resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8).to(_travels_on())
        dist.broadcast(sent, src=0)
        return sent.to("cpu").view(dtype).view(shape)

    return Stored(dtype, shape, file, is_mapped=False, read=read)


def _travels_on() -> torch.device:
    """The device whose tensors this group exchanges."""
    backend = str(dist.get_backend())
    return torch.device("cpu" if "gloo" in backend else backend.replace("nccl", "cuda"))
