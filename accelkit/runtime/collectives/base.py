"""The seam between structure-wise operations and what carries bytes from rank to rank."""

from abc import ABC, abstractmethod
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
    def all_gather_into(self, gathered: torch.Tensor, buffer: torch.Tensor) -> None:
        """The same, into a flat tensor of `size * buffer.numel()` elements that is there already."""

    @abstractmethod
    def all_reduce(self, tensor: torch.Tensor, reduction: Reduction) -> None:
        """Replace `tensor` by the reduction over all ranks."""

    @abstractmethod
    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Replace the contiguous `tensor` by that of rank `source`."""

    @abstractmethod
    def exchange(self, value: Any) -> list[Any]:
        """Any picklable value of every rank, in the order of ranks."""
