"""Sharded models in worlds of two and four ranks: every check of `sharding_checks.py`, on every rank."""

import pytest

from tests.distributed import sharding_checks
from tests.support.worlds import Worlds, checks_of


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("check", checks_of(sharding_checks))
def test_sharding(worlds: Worlds, size: int, check: str) -> None:
    """The check, whose docstring says what must hold, holds on every rank."""
    worlds.check(sharding_checks, size, check)
