"""Worlds of one, two and four ranks train in every combination of precision, accumulation and loader as one process does."""

import pytest

from tests.distributed import matrix_checks
from tests.support.worlds import Worlds


@pytest.mark.parametrize("size", [1, 2, 4])
def test_training_equals_one_process(worlds: Worlds, size: int) -> None:
    """Precision no, bf16 and fp16, windows of one, two and four micro-batches, seven kinds of loaders; not a word is said."""
    worlds.check(matrix_checks, size, "check_all")
    outcomes, _ = worlds.visit(matrix_checks, size)

    assert [outcome.output for outcome in outcomes] == [""] * size
