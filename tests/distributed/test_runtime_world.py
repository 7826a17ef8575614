"""Worlds of two and three ranks over gloo: every check of `world_checks.py`, on every rank, in one world of each size."""

import pytest

from tests.distributed import world_checks
from tests.support.worlds import Worlds, checks_of


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("check", checks_of(world_checks))
def test_in_a_world_of_several_ranks(worlds: Worlds, size: int, check: str) -> None:
    """The check, whose docstring says what must hold, holds on every rank."""
    worlds.check(world_checks, size, check)


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_leave_quietly(worlds: Worlds, size: int) -> None:
    """All ranks end with exit code 0 and without a word: no warning about a process group that was left open."""
    outcomes, _ = worlds.visit(world_checks, size)

    assert [(outcome.code, outcome.output) for outcome in outcomes] == [(0, "")] * size
