"""Fixtures of the runtime's unit tests."""

from collections.abc import Iterator

import pytest

from accelkit.runtime.gradients import GradientState


@pytest.fixture
def state() -> Iterator[GradientState]:
    """A loop state of this test alone."""
    GradientState._reset_state()
    yield GradientState()
    GradientState._reset_state()
