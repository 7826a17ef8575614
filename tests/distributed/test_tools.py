"""The tools around a loop in a world of two ranks: every check of `tools_checks.py`, on every rank, in one launch."""

import json

import pytest

from tests.distributed import tools_checks
from tests.support.ranks import run_ranks

CHECKS = [name for name in vars(tools_checks) if name.startswith("check_")]
SIZE = 2


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """What each rank found, by check."""
    folder = tmp_path_factory.mktemp("tools")
    outcomes = run_ranks(
        SIZE,
        "-m",
        "tests.distributed.tools_checks",
        str(folder),
        timeout=200,
        KIT_METRICS_FILE=str(folder / "metrics.jsonl"),
        PYTHONWARNINGS="ignore",  # torch's compiler warns of itself
    )
    files = [folder / f"{rank}.json" for rank in range(SIZE)]
    results = [json.loads(file.read_text()) if file.exists() else {} for file in files]
    for result, outcome in zip(results, outcomes, strict=True):
        result["output"] = f"exit code {outcome.code}\n{outcome.output[-3000:]}"
    return results


@pytest.mark.parametrize("check", CHECKS)
def test_on_two_ranks(found: list[dict[str, str]], check: str) -> None:
    """The check, whose docstring says what must hold, holds on every rank."""
    for rank, results in enumerate(found):
        assert results.get(check) == "", f"rank {rank}: {results.get(check) or 'was not reached'}\n{results['output']}"
