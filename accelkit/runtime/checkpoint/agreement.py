"""Work that succeeds on all ranks or on none."""

from collections.abc import Callable
from typing import Any, TypeVar

from accelkit.runtime.errors import CheckpointError

Exchange = Callable[[Any], list[Any]]
"""One picklable value of every rank, in the order of ranks; all ranks call it."""

T = TypeVar("T")


def settle(exchange: Exchange, what: str, work: Callable[[], T]) -> list[T]:
    """Do this rank's part of the work; returns the result of every rank.

    When it fails on any rank it fails on all: there with its own error, elsewhere with a CheckpointError that names the ranks and
    what went wrong on them.
    """
    failure: Exception | None = None
    mine: tuple[str, Any] = ("", None)
    try:
        mine = ("", work())
    except Exception as error:  # noqa: BLE001  (raised below, after the others know)
        failure, mine = error, (f"{type(error).__name__}: {error}", None)
    every = exchange(mine)
    if failure is not None:
        raise failure
    failed = [f"rank {rank}: {text}" for rank, (text, _) in enumerate(every) if text]
    if failed:
        raise CheckpointError("\n  ".join([f"{what} failed on {len(failed)} of {len(every)} ranks:", *failed[:4]]))
    return [value for _, value in every]


def nodes(local_ranks: list[int]) -> list[int]:
    """For each rank the first rank of its node. Ranks of a node follow each other, and the first has local rank 0."""
    owners: list[int] = []
    for rank, local in enumerate(local_ranks):
        owners.append(rank if local == 0 or not owners else owners[-1])
    return owners
