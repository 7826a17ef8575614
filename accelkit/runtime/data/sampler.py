"""Samplers whose order is a function of seed and epoch, and which can start anywhere."""

import copy
from collections.abc import Iterator, Sized
from itertools import chain, islice
from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler, Sampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from accelkit.runtime import rng


class SeedableRandomSampler(RandomSampler):
    """A random sampler whose order is given by `data_seed` and `epoch`, the same on every rank; it can start anywhere at once.

    With a `generator` of the script's own, the order is drawn from that instead, exactly as torch's sampler draws it.
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: torch.Generator | None = None,
        data_seed: int | None = None,
    ) -> None:
        super().__init__(data_source, replacement, num_samples, generator)
        self.data_seed = torch.initial_seed() if data_seed is None else data_seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order the next iteration has."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return self.open(0, 0)[1]

    def open(self, offset: int, head: int) -> tuple[list[int], Iterator[int]]:
        """The first `head` indices of the epoch, and all from `offset` on."""
        generator = self.generator
        if generator is None:
            generator = torch.Generator().manual_seed(rng.mix(self.data_seed, self.epoch))
        if self.replacement:
            drawn = copy.copy(self)
            drawn.generator = generator
            return _open_any(RandomSampler.__iter__(drawn), offset, head)
        total = len(self.data_source)
        blocks, rest = divmod(self.num_samples, max(total, 1))
        order = torch.randperm(total, generator=generator)
        if not blocks:
            return order[: min(head, rest)].tolist(), iter(order[:rest][offset:].tolist())
        first = order[:head].tolist()
        if head > total and self.num_samples > total:  # one epoch goes around the data more than once
            return _open_any(_blocks(order, generator, total, blocks, rest, 0), offset, head)
        return first, _blocks(order, generator, total, blocks, rest, offset)


def _blocks(
    order: torch.Tensor, generator: torch.Generator, total: int, blocks: int, rest: int, offset: int
) -> Iterator[int]:
    """Permutation after permutation, starting at `offset`; one more is drawn at the end, as torch does."""
    for _ in range(blocks):
        if offset < total:
            yield from order[offset:].tolist()
        offset = max(0, offset - total)
        order = torch.randperm(total, generator=generator)
    yield from order[:rest][offset:].tolist()


class IsolatedSampler(Sampler[Any]):
    """Any sampler or batch sampler, drawing from a generator of its own instead of torch's global one.

    Every rank then sees the same order, and nothing else that draws numbers is disturbed.
    """

    def __init__(self, inner: Any, seed: int) -> None:
        self.inner = inner
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order the next iteration has."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __iter__(self) -> Iterator[Any]:
        outside = torch.get_rng_state()
        torch.default_generator.manual_seed(rng.mix(self.seed, self.epoch))
        iterator = iter(self.inner)
        while True:
            try:
                item = next(iterator)
            except StopIteration:
                return
            finally:
                inside = torch.get_rng_state()
                torch.set_rng_state(outside)
            yield item
            outside = torch.get_rng_state()
            torch.set_rng_state(inside)


def is_ordered(sampler: Any) -> bool:
    """Whether a sampler (or batch sampler of torch's) is known to draw nothing from a generator that could differ on another rank."""
    if type(sampler) is BatchSampler:
        return is_ordered(sampler.sampler)
    return type(sampler) is SequentialSampler or isinstance(sampler, DistributedSampler)


def own_seed(sampler: Any) -> int | None:
    """The seed that a script gave to a SeedableRandomSampler, or to the one inside a batch sampler; None without one."""
    for candidate in (sampler, getattr(sampler, "sampler", None)):
        if isinstance(candidate, SeedableRandomSampler):
            return candidate.data_seed
    return None


def own_generator(sampler: Any) -> torch.Generator | None:
    """The generator that a script gave to a sampler, or to the one inside a batch sampler; None without one."""
    for candidate in (sampler, getattr(sampler, "sampler", None)):
        found = getattr(candidate, "generator", None)
        if isinstance(found, torch.Generator):
            return found
    return None


def agree(sampler: Any, seed: int) -> Any:
    """A sampler with the order of `sampler` that is the same on every rank that calls this with the same seed."""
    if is_ordered(sampler):
        return sampler
    if type(sampler) is BatchSampler:
        return BatchSampler(agree(sampler.sampler, seed), sampler.batch_size, sampler.drop_last)
    if isinstance(sampler, SeedableRandomSampler):
        made = copy.copy(sampler)
        made.data_seed = seed
        return made
    if type(sampler) is RandomSampler:
        return SeedableRandomSampler(
            sampler.data_source, sampler.replacement, sampler.num_samples, sampler.generator, seed
        )
    return IsolatedSampler(sampler, seed)


def distributed_part(sampler: Any) -> Any:
    """The DistributedSampler that a sampler is, or has inside; None without one."""
    for candidate in (sampler, getattr(sampler, "sampler", None)):
        if isinstance(candidate, DistributedSampler):
            return candidate
    return None


def open_batches(sampler: Any, skip: int, head: int) -> tuple[list[Any], Iterator[Any]]:
    """The first `head` batches of an epoch, and all after the first `skip`.

    torch's own batch sampler over an order that is known starts there at once; anything else is read up to there. With
    `skip` 0 the first list is empty: the iterator starts with them anyway.
    """
    if skip == 0:
        return [], iter(sampler)
    if type(sampler) is not BatchSampler:
        return _open_any(iter(sampler), skip, head)
    size, drop_last = sampler.batch_size, sampler.drop_last
    first, rest = _open_indices(sampler.sampler, skip * size, head * size)
    return list(BatchSampler(first, size, drop_last=False)), iter(BatchSampler(_Once(rest), size, drop_last))


def _open_indices(sampler: Any, offset: int, head: int) -> tuple[list[Any], Iterator[Any]]:
    if type(sampler) is SequentialSampler:
        total = len(sampler)
        return list(range(min(head, total))), iter(range(offset, total))
    if isinstance(sampler, SeedableRandomSampler):
        return sampler.open(offset, head)
    return _open_any(iter(sampler), offset, head)


def _open_any(items: Iterator[Any], offset: int, head: int) -> tuple[list[Any], Iterator[Any]]:
    first = list(islice(items, head))
    if offset <= len(first):
        return first, chain(first[offset:], items)
    return first, islice(items, offset - len(first), None)


class _Once(Sampler[Any]):
    """An iterator in the place of a sampler."""

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        return self._items
