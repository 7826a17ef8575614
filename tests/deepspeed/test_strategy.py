"""The suite that every strategy passes, for DeepSpeed's stages on two ranks and on one, with ddp and fsdp to exchange checkpoints with."""

import json

import pytest

from tests.distributed.strategy_checks import CHECKS
from tests.support.ranks import run_ranks
from tests.support.strategies import DEEPSPEED_CASES

SIZES = (2, 1)
PAIRS = [
    (size, case.name, check)
    for size in SIZES
    for case in DEEPSPEED_CASES.values()
    for check in CHECKS
    if case.has(check, size)
]
Found = dict[int, list[dict[str, str]]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What every rank of every world found."""
    folder, worlds = tmp_path_factory.mktemp("deepspeed"), {}
    for size in SIZES:
        outcomes = run_ranks(size, "-m", "tests.distributed.strategy_checks", str(folder), "deepspeed", timeout=400)
        files = [folder / f"{size}-{rank}.json" for rank in range(size)]
        worlds[size] = [json.loads(file.read_text()) if file.exists() else {} for file in files]
        for rank, outcome in enumerate(outcomes):
            worlds[size][rank]["output"] = f"exit code {outcome.code}\n{outcome.output[-2000:]}"
    return worlds


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("size", "case", "check"), PAIRS)
def test_strategy(found: Found, size: int, case: str, check: str) -> None:
    """The check, whose docstring says what must hold, holds on every rank."""
    for rank, results in enumerate(found[size]):
        result = results.get(f"{case}:{check}", "was not reached")
        assert result == "", f"rank {rank}: {result}\n{results['output']}"


@pytest.mark.parametrize("size", SIZES)
def test_ranks_leave_quietly(found: Found, size: int) -> None:
    """All ranks end with exit code 0 and without a word."""
    assert [results["output"] for results in found[size]] == ["exit code 0\n"] * size
