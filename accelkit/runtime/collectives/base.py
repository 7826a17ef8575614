"""The seam between structure-wise operations and what carries bytes from rank to rank."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import torch

Reduction = Literal["sum", "max"]


class Collectives(ABC):
    """What every carrier can do. Each method is called by all ranks, in the same order, with arguments that fit each other."""

    rank: int
    size: int

    @abstractmethod
    def all_gather(self, buffer: torch.Tensor) -> torch.Tensor:
        """`(size, *buffer.shape)`: the contiguous `buffer` of every rank, which all have one shape and type."""

    @abstractmethod
    def all_reduce(self, tensor: torch.Tensor, reduction: Reduction) -> None:
        """Replace `tensor` by the reduction over all ranks."""

    @abstractmethod
    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Replace the contiguous `tensor` by that of rank `source`."""

    @abstractmethod
    def exchange(self, value: Any) -> list[Any]:
        """Any picklable value of every rank, in the order of ranks."""

    @abstractmethod
    def broadcast_object(self, value: Any, source: int) -> Any:
        """Any picklable value of rank `source`."""


@dataclass(frozen=True)
class Channel:
    """What carries rows from rank 0 to the others."""

    carrier: Collectives
    device: torch.device
    """Where bytes must lie to travel."""

    def announce(self, size: int) -> None:
        """Rank 0: say how large the first rows are."""
        self.carrier.broadcast(torch.tensor([size], device=self.device), 0)

    def hear(self) -> int:
        """Other ranks: how large the first rows are."""
        size = torch.empty(1, dtype=torch.int64, device=self.device)
        self.carrier.broadcast(size, 0)
        return int(size.item())

    def send(self, rows: torch.Tensor) -> None:
        """Rank 0: a row for each other rank, `(size - 1, bytes)`."""
        self.carrier.broadcast(rows.to(self.device).view(-1), 0)

    def receive(self, size: int) -> torch.Tensor:
        """Other ranks: the row of this one, which nothing else refers to."""
        others = self.carrier.size - 1
        rows = torch.empty((others, size), dtype=torch.uint8, device=self.device)
        self.carrier.broadcast(rows.view(-1), 0)
        return rows[0] if others == 1 else rows[self.carrier.rank - 1].clone()
