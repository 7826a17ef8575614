"""Worlds of two and three ranks over gloo: every check of `world_checks.py`, on every rank, in one world of each size."""

import json
from pathlib import Path

import pytest

from tests.distributed import world_checks
from tests.support.ranks import Outcome, run_ranks

CHECKS = [name for name in vars(world_checks) if name.startswith("check_")]
SIZES = (2, 3)
Found = tuple[list[Outcome], list[dict[str, str]]]


@pytest.fixture(scope="session")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Found]:
    """What each world found, by its size; filled as worlds are asked for."""
    return {}


def visit(worlds: dict[int, Found], size: int, folder: Path) -> Found:
    """Run a world once, and remember it."""
    if size not in worlds:
        outcomes = run_ranks(size, "-m", "tests.distributed.world_checks", str(folder), timeout=150)
        files = [folder / f"{rank}.json" for rank in range(size)]
        worlds[size] = outcomes, [json.loads(file.read_text()) if file.exists() else {} for file in files]
    return worlds[size]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("check", CHECKS)
def test_in_a_world_of_several_ranks(worlds: dict[int, Found], tmp_path: Path, size: int, check: str) -> None:
    """The check, whose docstring says what must hold, holds on every rank."""
    outcomes, found = visit(worlds, size, tmp_path)

    for rank, results in enumerate(found):
        assert results.get(check) == "", (
            f"rank {rank}: {results.get(check) or 'was not reached'}\n{outcomes[rank].output[-2000:]}"
        )


@pytest.mark.parametrize("size", SIZES)
def test_ranks_leave_quietly(worlds: dict[int, Found], tmp_path: Path, size: int) -> None:
    """All ranks end with exit code 0 and without a word: no warning about a process group that was left open."""
    outcomes, _ = visit(worlds, size, tmp_path)

    assert [(outcome.code, outcome.output) for outcome in outcomes] == [(0, "")] * size
