"""Uneven inputs in worlds of two and four ranks over gloo: every check of `joining_checks.py`, on every rank, in one world of each size."""

import pytest

from tests.distributed import joining_checks
from tests.support.worlds import Worlds, checks_of


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("check", checks_of(joining_checks))
def test_in_a_world_of_several_ranks(worlds: Worlds, size: int, check: str) -> None:
    """The check, whose docstring says what must hold, holds on every rank."""
    worlds.check(joining_checks, size, check)
