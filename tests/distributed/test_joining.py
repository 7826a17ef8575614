"""Uneven inputs in worlds of two and four ranks over gloo: every check of `joining_checks.py`, on every rank, in one world of each size."""

from pathlib import Path

import pytest

from tests.distributed import joining_checks
from tests.support.checks import Found, visit

CHECKS = [name for name in vars(joining_checks) if name.startswith("check_")]
SIZES = (2, 4)


@pytest.fixture(scope="session")
def worlds() -> dict[int, Found]:
    """What each world found, by its size; filled as worlds are asked for."""
    return {}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("check", CHECKS)
def test_in_a_world_of_several_ranks(worlds: dict[int, Found], tmp_path: Path, size: int, check: str) -> None:
    """The check, whose docstring says what must hold, holds on every rank."""
    outcomes, found = visit(worlds, size, "tests.distributed.joining_checks", tmp_path)

    for rank, results in enumerate(found):
        assert results.get(check) == "", (
            f"rank {rank}: {results.get(check) or 'was not reached'}\n{outcomes[rank].output[-2000:]}"
        )
