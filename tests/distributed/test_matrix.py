"""Worlds of one, two and four ranks train in every combination of precision, accumulation and loader as one process does."""

from pathlib import Path

import pytest

from tests.support.checks import visit


@pytest.mark.parametrize("size", [1, 2, 4])
def test_training_equals_one_process(tmp_path: Path, size: int) -> None:
    """Precision no, bf16 and fp16, windows of one, two and four micro-batches, seven kinds of loaders."""
    outcomes, found = visit({}, size, "tests.distributed.matrix_checks", tmp_path)

    for outcome, results in zip(outcomes, found, strict=True):
        assert results == {"check_all": ""}, outcome.output[-3000:]
        assert (outcome.code, outcome.output) == (0, "")
