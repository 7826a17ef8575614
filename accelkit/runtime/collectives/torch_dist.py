"""Collectives over torch.distributed's default process group."""

from typing import Any, Final

import torch
import torch.distributed as dist

from accelkit.runtime.collectives.base import Collectives, Reduction

_ALL_GATHER: Final = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
"""torch renamed it."""
_OPERATIONS: Final = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}


class TorchCollectives(Collectives):
    """Collectives of a rank whose process group exists."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()

    def all_gather(self, buffer: torch.Tensor) -> torch.Tensor:
        """Gather into one tensor, without a list of parts to be joined afterwards."""
        gathered = torch.empty((self.size, *buffer.shape), dtype=buffer.dtype, device=buffer.device)
        if buffer.numel():
            self.all_gather_into(gathered.view(-1), buffer.view(-1))
        return gathered

    def all_gather_into(self, gathered: torch.Tensor, buffer: torch.Tensor) -> None:
        """Gather into what is there already."""
        getattr(dist, _ALL_GATHER)(gathered, buffer)

    def all_reduce(self, tensor: torch.Tensor, reduction: Reduction) -> None:
        """Reduce in place."""
        if tensor.numel():
            dist.all_reduce(tensor, op=_OPERATIONS[reduction])

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Broadcast in place."""
        if tensor.numel():
            dist.broadcast(tensor, src=source)

    def exchange(self, value: Any) -> list[Any]:
        """Gather by pickling."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found


class CopyingCollectives(TorchCollectives):
    """The same for tensors of a device that the group's backends do not know: copies on the CPU travel."""

    def all_gather(self, buffer: torch.Tensor) -> torch.Tensor:
        """Gather copies; the result is where the buffer is."""
        return super().all_gather(buffer.cpu()).to(buffer.device)

    def all_gather_into(self, gathered: torch.Tensor, buffer: torch.Tensor) -> None:
        """Gather copies into what is there already."""
        here = gathered if gathered.device.type == "cpu" else torch.empty_like(gathered, device="cpu")
        super().all_gather_into(here, buffer.cpu())
        if here is not gathered:
            gathered.copy_(here)

    def all_reduce(self, tensor: torch.Tensor, reduction: Reduction) -> None:
        """Reduce a copy, and copy it back."""
        here = tensor.cpu()
        super().all_reduce(here, reduction)
        if here is not tensor:
            tensor.copy_(here)

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Broadcast a copy, and copy it back."""
        here = tensor.cpu()
        super().broadcast(here, source)
        if here is not tensor:
            tensor.copy_(here)
