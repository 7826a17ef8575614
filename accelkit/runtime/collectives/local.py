"""A world of one rank: everything is already where it should be."""

from typing import Any

import torch

from accelkit.runtime.collectives.base import Collectives, Reduction


class LocalCollectives(Collectives):
    """Collectives of the only rank; they copy nothing and wait for nobody."""

    rank = 0
    size = 1

    def all_gather(self, buffer: torch.Tensor) -> torch.Tensor:
        """The buffer with a dimension of one in front."""
        return buffer.unsqueeze(0)

    def all_gather_into(self, gathered: torch.Tensor, buffer: torch.Tensor) -> None:
        """Copy the buffer."""
        gathered.copy_(buffer.view(-1))

    def all_reduce(self, tensor: torch.Tensor, reduction: Reduction) -> None:
        """Leave the tensor as it is."""

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Leave the tensor as it is."""

    def exchange(self, value: Any) -> list[Any]:
        """The value, alone."""
        return [value]
