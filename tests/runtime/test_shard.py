"""Which samples each rank gets: compared, for all small numbers, with the plain loop of one process."""

from itertools import chain, pairwise, product
from typing import Any

import pytest

from accelkit.runtime.data.shard import Plan, Round, Tail, count_rounds, deal, deal_order, everyone, mark_padding, own
from accelkit.runtime.errors import SettingError

LENGTHS = range(18)
SIZES = (1, 2, 3, 4)
BATCHES = (1, 2, 3, 4, 5)


def make_batches(length: int, batch_size: int, drop_last: bool) -> list[list[int]]:
    """What torch's batch sampler yields over `range(length)`."""
    batches = [list(range(start, min(start + batch_size, length))) for start in range(0, length, batch_size)]
    return [batch for batch in batches if len(batch) == batch_size or not drop_last]


def deal_all(batches: list[Any], **plan: Any) -> list[list[tuple[Any, Tail | None]]]:
    """The shares of every rank."""
    return [list(deal_one(batches, Plan(rank=rank, **plan))) for rank in range(plan["size"])]


def deal_one(batches: list[Any], plan: Plan, first: list[Any] | tuple[()] = ()) -> list[tuple[Any, Tail | None]]:
    """The shares of one rank."""
    return [only(found) for found in deal(iter(batches), plan, own(plan), first=first)]


def only(found: Round) -> tuple[Any, Tail | None]:
    """The single share of a round of one rank."""
    (share,), tail = found
    return share, tail


def gathered(ranks: list[list[tuple[Any, Tail | None]]]) -> list[list[int]]:
    """Per step, what all ranks hold, joined in the order of ranks and without what is not to be kept."""
    steps = []
    for step in range(max(map(len, ranks))):
        shares = [rank[step] for rank in ranks if step < len(rank)]
        keep = shares[0][1].keep if shares[0][1] else [len(share) for share, _ in shares]
        steps.append(list(chain(*(share[:kept] for (share, _), kept in zip(shares, keep, strict=False)))))
    return steps


CASES = [
    {"size": size, "batch_size": batch, "drop_last": drop, "even": even, "split": split}
    for size, batch, drop, even, split in product(SIZES, BATCHES, (False, True), (False, True), (False, True))
    if not (split and (size == 1 or batch % size))
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_all_ranks_together_see_every_sample_once_and_in_order(case: dict[str, Any]) -> None:
    """What is kept of all ranks' shares, joined, is the sequence of samples; drop_last cuts its end only."""
    for length in LENGTHS:
        batches = make_batches(length, case["batch_size"], case["drop_last"])
        ranks = deal_all(batches, **case)
        seen = list(chain(*gathered(ranks)))

        per_round = case["batch_size"] * (1 if case["split"] else case["size"])
        kept = length // per_round * per_round if case["drop_last"] else length
        assert seen == list(range(kept)), f"{length} samples"


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_the_counted_length_is_the_length(case: dict[str, Any]) -> None:
    """`count_rounds` says for each rank how many steps its iteration has, given how many samples the sampler has."""
    for length in LENGTHS:
        batches = make_batches(length, case["batch_size"], case["drop_last"])
        for rank, shares in enumerate(deal_all(batches, **case)):
            counted = count_rounds(len(batches), Plan(rank=rank, **case), length)
            assert counted == len(shares), f"{length} samples, rank {rank}"


@pytest.mark.parametrize(
    "case", [case for case in CASES if case["even"]], ids=lambda case: "-".join(map(str, case.values()))
)
def test_even_ranks_have_equally_many_full_batches(case: dict[str, Any]) -> None:
    """With even batches every rank has as many steps, and each step is full; a single rank keeps its short tail."""
    share = case["batch_size"] // case["size"] if case["split"] else case["batch_size"]
    for length in LENGTHS:
        ranks = deal_all(make_batches(length, case["batch_size"], case["drop_last"]), **case)
        assert len({len(rank) for rank in ranks}) == 1
        if case["size"] > 1:
            assert {len(batch) for rank in ranks for batch, _ in rank} <= {share}


def test_the_tail_is_filled_with_the_first_samples_over_and_over() -> None:
    """One sample among two ranks with batches of three becomes six times that sample, of which one is real."""
    ranks = deal_all([[7]], size=2, batch_size=3, drop_last=False, even=True, split=False)

    assert [[([7, 7, 7], Tail((3, 3), (1, 0)))], [([7, 7, 7], Tail((3, 3), (1, 0)))]] == ranks


def test_a_stream_that_starts_later_is_filled_from_the_true_start() -> None:
    """After a skip, the end of the epoch is the same as without it: filled with the samples of the epoch's first round."""
    batches = make_batches(11, 2, drop_last=False)
    for rank in (0, 1):
        plan = Plan(rank=rank, size=2, batch_size=2, drop_last=False, even=True, split=False)
        whole = deal_one(batches, plan)
        for skip in range(3):
            rest = deal_one(batches[2 * skip :], plan, batches[:2] if skip else ())
            assert whole[skip:] == rest


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("even", [True, False])
def test_batches_of_unknown_size_are_dealt_whole(size: int, even: bool) -> None:
    """Without a batch size, batches of any length go to ranks as they are; missing ones repeat the first."""
    for count in range(9):
        batches = [[100 * index + i for i in range(1 + index % 3)] for index in range(count)]
        ranks = deal_all(batches, size=size, batch_size=None, drop_last=False, even=even, split=False)
        assert list(chain(*gathered(ranks))) == list(chain(*batches))
        if even:
            assert len({len(rank) for rank in ranks}) == 1


def test_a_short_batch_in_the_middle_is_left_alone() -> None:
    """A sampler that makes a short batch before its end loses nothing and nothing is moved between its batches."""
    batches = [[0, 1], [2], [3, 4], [5, 6], [7]]
    ranks = deal_all(batches, size=2, batch_size=2, drop_last=False, even=True, split=False)

    assert [batch for batch, _ in ranks[0]] == [[0, 1], [3, 4], [7, 0]]
    assert [batch for batch, _ in ranks[1]] == [[2], [5, 6], [1, 2]]
    assert list(chain(*gathered(ranks))) == list(range(8))


@pytest.mark.parametrize("lengths", list(product((1, 3, 4, 6, 9), repeat=3)), ids=str)
@pytest.mark.parametrize("drop_last", [False, True])
def test_split_batches_of_any_length_are_divided_by_their_own(lengths: tuple[int, ...], drop_last: bool) -> None:
    """With a batch size that not every batch has no sample is lost or kept twice, and ranks differ by one sample at most."""
    starts = [sum(lengths[:index]) for index in range(len(lengths) + 1)]
    batches = [list(range(low, high)) for low, high in pairwise(starts)]
    plan = {"size": 2, "batch_size": 4, "drop_last": drop_last, "split": True}

    even = deal_all(batches, **plan, even=True)
    assert gathered(even) == batches
    assert [len(shares) for shares in even] == [len(lengths)] * 2
    assert all(len(one) == len(other) for (one, _), (other, _) in zip(*even, strict=True))
    if 1 in lengths[:-1]:
        with pytest.raises(SettingError, match="a batch of 1 amid the epoch"):
            deal_all(batches, **plan, even=False)
        return
    assert gathered(deal_all(batches, **plan, even=False)) == batches


@pytest.mark.parametrize("replicas", [2, 3, 4])
@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_what_a_distributed_sampler_repeated_is_marked(replicas: int, batch_size: int) -> None:
    """Of a sampler that pads by itself, each sample is kept exactly once over all ranks."""
    for length in range(1, 14):
        per_rank = -(-length // replicas)
        kept: list[int] = []
        for rank in range(replicas):
            indices = [(rank + step * replicas) % length for step in range(per_rank)]
            batches = [indices[i : i + batch_size] for i in range(0, per_rank, batch_size)]
            for batch, tail in map(
                only, mark_padding(iter(batches), replicas=replicas, length=length, per_rank=per_rank)
            ):
                kept += batch[: tail.keep[rank]] if tail else batch
        assert sorted(kept) == list(range(length))


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_an_order_is_dealt_as_its_batches_are(case: dict[str, Any]) -> None:
    """Arithmetic on an order gives the rounds that dealing batches gives, for one rank and for all, from every step on."""
    for length in LENGTHS:
        batches = make_batches(length, case["batch_size"], case["drop_last"])
        for rank in range(case["size"]):
            plan = Plan(rank=rank, **case)
            for ranks in (own(plan), everyone(plan)):
                whole = list(deal(iter(batches), plan, ranks))
                for step in range(len(whole) + 2):
                    start = step * plan.per_round * case["batch_size"]
                    found = deal_order(lambda low, high: list(range(low, high)), length, plan, ranks, start)
                    assert list(found) == whole[step:], f"{length} samples, rank {rank}, step {step}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_an_order_can_be_entered_anywhere(case: dict[str, Any]) -> None:
    """From any sample on, also one in the middle of a round, all ranks together see what is left, once and in order."""
    for length in LENGTHS:
        for start in range(length + 1):
            ranks = []
            for rank in range(case["size"]):
                plan = Plan(rank=rank, **case)
                rounds = deal_order(lambda low, high: list(range(low, high)), length, plan, own(plan), start)
                ranks.append([only(found) for found in rounds])
            per_round = case["batch_size"] * (1 if case["split"] else case["size"])
            left = length - start
            kept = left // per_round * per_round if case["drop_last"] else left
            assert list(chain(*gathered(ranks))) == list(range(start, start + kept)), f"{length} samples from {start}"
