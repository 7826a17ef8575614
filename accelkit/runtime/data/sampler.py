"""Samplers whose order is a function of seed and epoch, and which can start anywhere."""

import copy
from collections.abc import Callable, Iterator, Sized
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch.utils.data import BatchSampler, RandomSampler, Sampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from accelkit.runtime import rng
from accelkit.runtime.data import rng_states


class SeedableRandomSampler(RandomSampler):
    """A random sampler whose order is given by `data_seed` and `epoch`, the same on every rank; it can be entered anywhere at once.

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
        order = self.order()
        if order is not None:
            return order.walk()
        drawn = copy.copy(self)
        drawn.generator = self._draws_from()
        return RandomSampler.__iter__(drawn)

    def order(self) -> "Order | None":
        """The epoch's order, drawn now; None when it goes around the data more than once, or draws with replacement."""
        total = len(self.data_source)
        if self.replacement or self.num_samples > total:
            return None
        drawn = torch.randperm(total, generator=self._draws_from())
        finish = None
        if self.generator is not None and self.num_samples == total:
            finish = partial(torch.randperm, total, generator=self.generator)  # torch's sampler draws once more
        return Order(lambda low, high: drawn[low:high].tolist(), self.num_samples, finish)

    def _draws_from(self) -> torch.Generator:
        return self.generator or torch.Generator().manual_seed(rng.mix(self.data_seed, self.epoch))


class Order(NamedTuple):
    """A known order of indices, which can be entered anywhere."""

    take: Callable[[int, int], list[int]]
    """The indices from one place up to another; both lie within the length."""
    length: int
    finish: Callable[[], Any] | None = None
    """To be called when the last index has been taken."""

    def walk(self) -> Iterator[int]:
        """All indices."""
        yield from self.take(0, self.length)
        if self.finish is not None:
            self.finish()


def order_of(sampler: Any) -> Order | None:
    """The order of a sampler's coming epoch where it is known without reading it; None where it is not."""
    if type(sampler) is SequentialSampler:
        return Order(lambda low, high: list(range(low, high)), len(sampler))
    return sampler.order() if isinstance(sampler, SeedableRandomSampler) else None


class IsolatedSampler(Sampler[Any]):
    """Any sampler or batch sampler, drawing from generators of its own instead of the global ones of torch, Python and numpy.

    Every rank then sees the same order, and nothing else that draws numbers is disturbed.
    """

    def __init__(self, inner: Any, seed: int) -> None:
        self.inner = inner
        self.data_seed = seed
        self.epoch = 0
        self._draws_on = True

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
        return self.guard(item for _ in (None,) for item in self.watch(iter(self.inner)))

    def watch(self, items: Iterator[Any]) -> Iterator[Any]:
        """Note whether an iterator, just made, can draw at all: one over a list that was drawn beforehand cannot."""
        self._draws_on = type(items) not in _DRAWN
        return items

    def guard(self, items: Iterator[Any]) -> Iterator[Any]:
        """The items of a generator that draws; whenever it runs, the global generators are in the state that it left."""
        states = rng_states.TORCH if _is_torchs(self.inner) else rng_states.ALL
        inside = None
        self._draws_on = True
        while inside is None or self._draws_on:
            outside = states.capture()
            if inside is None:
                states.seed(rng.mix(self.data_seed, self.epoch))
            else:
                states.restore(inside)
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                inside = states.capture()
                states.restore(outside)
            yield item
        yield from items


def _is_torchs(sampler: Any) -> bool:
    """Whether a sampler and the one inside it are torch's own, which draw from torch's generators only."""
    parts = (sampler, getattr(sampler, "sampler", sampler))
    return all(type(part).__module__.startswith("torch.utils.data.") for part in parts)


_DRAWN: Final[tuple[type, ...]] = (
    type(iter([])),
    type(iter(())),
    type(iter(range(1))),
    type(iter(set())),
    type(iter({})),
)


def is_ordered(sampler: Any) -> bool:
    """Whether a sampler (or batch sampler) is known to draw nothing from a generator that could differ on another rank."""
    if type(sampler) is BatchSampler:
        return is_ordered(sampler.sampler)
    return type(sampler) in (SequentialSampler, list, tuple, range) or isinstance(sampler, DistributedSampler)


def seeded(sampler: Any) -> Any:
    """The sampler of ours that is seeded: the one given, or the one inside a batch sampler; None without one."""
    for candidate in (sampler, getattr(sampler, "sampler", None)):
        if isinstance(candidate, (SeedableRandomSampler, IsolatedSampler)):
            return candidate
    return None


def own_seed(sampler: Any) -> int | None:
    """The seed that a script gave to a SeedableRandomSampler, or to the one inside a batch sampler; None without one."""
    found = seeded(sampler)
    return None if found is None else found.data_seed


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
    if type(sampler) is BatchSampler and _is_random(sampler.sampler):
        return BatchSampler(agree(sampler.sampler, seed), sampler.batch_size, sampler.drop_last)
    if isinstance(sampler, SeedableRandomSampler):
        made = copy.copy(sampler)
        made.data_seed = seed
        return made
    if type(sampler) is RandomSampler:
        return SeedableRandomSampler(*random_arguments(sampler), seed)
    return IsolatedSampler(sampler, seed)  # a batch sampler as a whole: generators are exchanged once a batch


def random_arguments(sampler: Any) -> tuple[Any, Any, Any, Any]:
    """What torch's random sampler, or torchdata's, was made with; without a number of samples it follows the data set's length."""
    return sampler.data_source, sampler.replacement, sampler._num_samples, sampler.generator  # noqa: SLF001


def _is_random(sampler: Any) -> bool:
    return type(sampler) is RandomSampler or isinstance(sampler, SeedableRandomSampler)


def distributed_part(sampler: Any) -> Any:
    """The DistributedSampler that a sampler is, or has inside; None without one."""
    for candidate in (sampler, getattr(sampler, "sampler", None)):
        if isinstance(candidate, DistributedSampler):
            return candidate
    return None


class Once(Sampler[Any]):
    """An iterator in the place of a sampler."""

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        return self._items
