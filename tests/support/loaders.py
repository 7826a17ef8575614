"""Worlds of loaders played in one process, and the data sets that they read."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import (
    IterableDataset,
    Sampler,
)

from accelkit.runtime.data.loader import PreparedLoader
from accelkit.runtime.data.prepare import prepare_data_loader
from accelkit.runtime.gradients import GradientState
from accelkit.runtime.settings import DataLoaderConfiguration


class World:
    """Prepares one loader per rank; what rank 0 agrees on is what the others get."""

    def __init__(self, size: int, state: GradientState, **config: Any) -> None:
        self.size, self.state, self.config = size, state, DataLoaderConfiguration(**config)
        self._said: list[Any] = []

    def prepare(self, make: Any, shard: bool = True) -> list[PreparedLoader]:
        """The prepared loader of every rank, of what `make(rank)` gives."""
        said: list[Any] = []

        def agree(value: Any) -> Any:
            said.append(value)
            return said[0]

        return [
            prepare_data_loader(
                make(rank), rank=rank, size=self.size, device=torch.device("cpu"),
                config=self.config, agree=agree, state=self.state, shard=shard,
            )
            for rank in range(self.size)
        ]  # fmt: skip


class Numbers(torch.utils.data.Dataset[int]):
    """The numbers below `length`, and which were read."""

    def __init__(self, length: int) -> None:
        self.length, self.read = length, []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        self.read.append(index)
        return index


class Stream(IterableDataset[int]):
    """The numbers below `length`, one after the other."""

    def __init__(self, length: int) -> None:
        self.length, self.epoch = length, -1

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        yield from range(self.length)

    def set_epoch(self, epoch: int) -> None:
        """Remember what was told."""
        self.epoch = epoch


def epoch(loaders: list[PreparedLoader]) -> list[int]:
    """One epoch of all ranks in step: what is kept of each step, joined in the order of ranks."""
    seen: list[int] = []
    iterators = [iter(loader) for loader in loaders]
    while True:
        batches = [next(iterator, None) for iterator in iterators]
        batches = [batch for batch in batches if batch is not None]
        if not batches:
            return seen
        tail = loaders[0].state.iteration.tail  # type: ignore[union-attr]
        for rank, batch in enumerate(batches):
            seen += batch.tolist()[: tail.keep[rank] if tail else None]


class Shuffling(Sampler[int]):
    """A sampler of a user's own that draws from torch's global generator while it is iterated."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        for start in range(0, self.length, 4):
            yield from (start + torch.randperm(min(4, self.length - start))).tolist()
