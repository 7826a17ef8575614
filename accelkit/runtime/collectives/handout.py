"""Rank 0 hands out a row of bytes to each other rank: one broadcast a step."""

from dataclasses import dataclass

import torch

from accelkit.runtime.collectives.base import Collectives


@dataclass(frozen=True)
class Handout:
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
