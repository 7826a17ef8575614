"""Which samples each rank gets: functions over batches of indices, without torch and without communication.

Rounds. One round is what all ranks work on in one step. With per-rank batches (the default) a round is `size` batches of
the loader, and rank i takes the i-th; with `split` it is one batch, of which rank i takes the i-th slice. Either way the
shares of a round, joined in the order of ranks, are the samples in their order.

Ends. With `drop_last` an incomplete round is left out. With `even` it is filled with the epoch's first samples, over and
over, so that every rank has as many samples as ever; what was filled in always comes last, so `Tail.keep` says how many
of each rank's samples are real. Without `even` the ranks' shares differ, and some ranks may have none.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice, pairwise
from typing import Any

from accelkit.runtime.errors import SettingError

Batch = Any
"""What a batch sampler yields: a list of indices, or, without a batch size, anything."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How batches are dealt to ranks."""

    rank: int
    size: int
    batch_size: int | None
    """Samples in a full batch as the sampler makes them; None when it does not say."""
    drop_last: bool
    even: bool
    split: bool

    @property
    def per_round(self) -> int:
        """Batches of the sampler in one round."""
        return 1 if self.split else self.size

    @property
    def share(self) -> int | None:
        """Samples of one rank in a full round."""
        if self.batch_size is None:
            return None
        return self.batch_size // self.size if self.split else self.batch_size


@dataclass(frozen=True)
class Tail:
    """A round in which not every rank has a full share of real samples."""

    counts: tuple[int, ...]
    """Samples in each rank's share; -1: as many as the batch turns out to have."""
    keep: tuple[int, ...]
    """How many of them are real, the first ones; the rest repeats samples. -1: all."""
    absent: tuple[int, ...] = ()
    """Ranks that have no share, and so no step, in the round."""

    @property
    def real(self) -> int:
        """Real samples in the round; -1 when some rank's number is not known."""
        return -1 if -1 in self.keep else sum(self.keep)

    def spread(self, shares: Sequence[int]) -> "Tail":
        """The same where several ranks have one share: only the first of them brings it. `shares`: that of each rank."""
        if len(shares) == len(self.counts):
            return self
        keep = [self.keep[share] if share not in shares[:rank] else 0 for rank, share in enumerate(shares)]
        return Tail(tuple(self.counts[share] for share in shares), tuple(keep))


Round = tuple[list[Batch], Tail | None]
"""The shares of the ranks that were asked for, in their order, and what is to be known of the round where it is not complete."""

Measure = Callable[[Batch], int]
"""How many samples a batch has; -1 when it does not tell."""


def own(plan: Plan) -> range:
    """The rank of a plan, as the ranks whose shares are asked for."""
    return range(plan.rank, plan.rank + 1)


def everyone(plan: Plan) -> range:
    """All ranks of a plan."""
    return range(plan.size)


def count_listed(batch: Batch) -> int:
    """Samples of a batch that is a list of indices."""
    return len(batch) if isinstance(batch, (list, tuple)) else -1


def deal(
    batches: Iterator[Batch],
    plan: Plan,
    ranks: range,
    *,
    first: Sequence[Batch] = (),
    measure: Measure = count_listed,
) -> Iterator[Round]:
    """Round after round, the batches of `ranks`; a round in which they have none is left out.

    `first` holds the batches of the epoch's first round, for batches that do not start there; else they are taken from these.
    """
    head = list(first)
    current = list(islice(batches, plan.per_round))
    while current:
        head = head or current
        following = [] if _is_full(current, plan) else list(islice(batches, plan.per_round))  # is it the last?
        shares, tail = _divide(current, head, plan, is_last=not following, measure=measure)
        mine = [shares[rank] for rank in ranks if rank < len(shares)]
        if mine:
            yield mine, tail
        current = following or list(islice(batches, plan.per_round))


def _is_full(batches: list[Batch], plan: Plan) -> bool:
    """Whether a round is complete in itself, so that what follows it makes no difference."""
    if len(batches) < plan.per_round:
        return False
    return plan.size == 1 or plan.batch_size is None or all(len(batch) == plan.batch_size for batch in batches)


def deal_order(
    take: Callable[[int, int], list[Any]], length: int, plan: Plan, ranks: range, start: int
) -> Iterator[Round]:
    """The same for batches cut from an order of `length` indices, of which `take(i, j)` gives those from i up to j.

    Starts at index `start` of the order, at once: no index before it is looked at, and none of another rank's in a full round.
    """
    size, share = plan.batch_size or 1, plan.share or 1
    whole = share * plan.size
    bounds = [(rank * share, (rank + 1) * share) for rank in ranks]
    at = start
    while at + whole <= length:
        yield [take(at + low, at + high) for low, high in bounds], None
        at += whole
    if at >= length or (plan.drop_last and length - at < size):
        return
    rest = [take(low, min(low + size, length)) for low in range(at, length, size)]
    if plan.drop_last and len(rest[-1]) < size:
        rest.pop()
    head = [take(low, min(low + size, length)) for low in range(0, min(whole, length), size)]
    shares, tail = _divide(rest, head, plan, is_last=True, measure=count_listed)
    mine = [shares[rank] for rank in ranks if rank < len(shares)]
    if mine:
        yield mine, tail


def _divide(batches: list[Batch], head: list[Batch], plan: Plan, *, is_last: bool, measure: Measure) -> Round:
    """The shares of all ranks in one round."""
    if plan.size == 1:
        return batches, None
    if plan.batch_size is None:
        return _deal_whole(batches, head, plan, measure)
    if plan.split:
        return _slice_batch(batches[0], head, plan, is_last=is_last)
    lengths = [len(batch) for batch in batches]
    if lengths == [plan.batch_size] * plan.size:
        return batches, None
    regular = lengths[:-1] == [plan.batch_size] * (len(lengths) - 1) and lengths[-1] <= plan.batch_size
    if plan.even and not plan.drop_last and is_last and regular:
        return _fill(list(chain(*batches)), head, plan, plan.batch_size)
    return _deal_whole(batches, head, plan, measure)


def _deal_whole(batches: list[Batch], head: list[Batch], plan: Plan, measure: Measure) -> Round:
    """A batch per rank as it is; missing ones are left out, or taken from the first round."""
    counts = [measure(batch) for batch in batches]
    missing = plan.size - len(batches)
    if missing == 0:
        return batches, Tail(tuple(counts), tuple(counts))
    if plan.drop_last:
        return [], None
    if not plan.even:
        padded = (*counts, *[0] * missing)
        return batches, Tail(padded, padded, tuple(range(len(batches), plan.size)))
    again = list(islice(cycle(head), missing))
    return [*batches, *again], Tail((*counts, *map(measure, again)), (*counts, *[0] * missing))


def _slice_batch(batch: list[Any], head: list[Batch], plan: Plan, *, is_last: bool) -> Round:
    """A batch cut into one slice per rank: by the batch size where it is a full one or a short last one, else by its own length."""
    whole, length = plan.batch_size or 0, len(batch)
    share = whole // plan.size
    is_odd = length > whole or not is_last or plan.drop_last
    if length == whole:
        return [batch[rank * share : (rank + 1) * share] for rank in range(plan.size)], None
    if length < plan.size and not (is_last or plan.even):
        raise SettingError(
            f"split_batches=True, even_batches=False: a batch of {length} amid the epoch cannot be divided among {plan.size} ranks",
            hint=f"let the batch sampler make batches of at least {plan.size} samples, or use even_batches=True",
        )
    if plan.even:
        return _fill(batch, head, plan, -(-length // plan.size) if is_odd else share)
    share, more = divmod(length, plan.size) if is_odd else (share, 0)
    bounds = [rank * share + min(rank, more) for rank in range(plan.size + 1)]
    slices = [batch[low:high] for low, high in pairwise(bounds)]
    counts = tuple(map(len, slices))
    absent = tuple(rank for rank, count in enumerate(counts) if not count)
    return slices[: plan.size - len(absent)], Tail(counts, counts, absent)


def _fill(samples: list[Any], head: list[Batch], plan: Plan, share: int) -> tuple[list[Batch], Tail]:
    """Shares of equal length from too few samples; the epoch's first ones follow them, over and over."""
    filler = cycle(list(chain(*head)))
    filled = [*samples, *islice(filler, share * plan.size - len(samples))]
    keep = tuple(min(max(len(samples) - rank * share, 0), share) for rank in range(plan.size))
    shares = [filled[rank * share : (rank + 1) * share] for rank in range(plan.size)]
    return shares, Tail((share,) * plan.size, keep)


def count_rounds(batches: int, plan: Plan, samples: int | None = None) -> int:
    """Steps of this rank in an epoch of `batches` batches; `samples` is what they are cut from, where it is known."""
    whole, rest = divmod(batches, plan.per_round)
    if plan.size == 1:
        return batches
    if plan.split:
        return _count_slices(batches, plan, samples)
    if plan.drop_last or not rest:
        return whole
    return whole + (1 if plan.even else int(plan.rank < rest))


def _count_slices(batches: int, plan: Plan, samples: int | None) -> int:
    short = samples % plan.batch_size if samples is not None and plan.batch_size else 0
    if not short or plan.even or plan.drop_last or not batches:
        return batches
    share = (plan.batch_size or 0) // plan.size
    return batches - 1 + int(plan.rank * share < short)


def mark_padding(
    batches: Iterator[Batch], *, replicas: int, length: int, per_rank: int, seen: int = 0
) -> Iterator[Round]:
    """Batches of a sampler that already serves this rank alone, and has repeated samples so that ranks are even.

    `length` samples in all, `per_rank` at each of `replicas` ranks, dealt one by one: the last sample of the last ranks is a
    repetition where the numbers do not divide. `seen` of this rank's samples were left out before the first batch.
    """
    padded = length % replicas
    for batch in batches:
        count = max(count_listed(batch), 1)
        seen += count
        if padded and seen == per_rank and per_rank * replicas > length:
            keep = tuple(count - int(rank >= padded) for rank in range(replicas))
            yield [batch], Tail((count,) * replicas, keep)
        else:
            yield [batch], None
