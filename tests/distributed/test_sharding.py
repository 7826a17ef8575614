"""Sharded models in worlds of two and four ranks: every check of `sharding_checks.py`, on every rank."""

import json
from pathlib import Path

import pytest

from tests.distributed import sharding_checks
from tests.support.checks import Found, visit

CHECKS = [name for name in vars(sharding_checks) if name.startswith("check_")]
SIZES = (2, 4)


@pytest.fixture(scope="module")
def worlds() -> dict[int, Found]:
    """What each world found, by its size; filled as worlds are asked for."""
    return {}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("check", CHECKS)
def test_sharding(worlds: dict[int, Found], tmp_path: Path, size: int, check: str) -> None:
    """The check, whose docstring says what must hold, holds on every rank."""
    outcomes, found = visit(worlds, size, "tests.distributed.sharding_checks", tmp_path)

    for rank, results in enumerate(found):
        assert results.get(check) == "", (
            f"rank {rank}: {results.get(check) or 'was not reached'}\n{outcomes[rank].output[-2000:]}"
        )
    assert json.dumps([outcome.code for outcome in outcomes]) == json.dumps([0] * size)
