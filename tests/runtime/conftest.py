"""Fixtures of the runtime's unit tests."""

from collections.abc import Iterator

import pytest

from accelkit.runtime.gradients import GradientState
from accelkit.runtime.state import AcceleratorState


@pytest.fixture(autouse=True)
def own_state() -> Iterator[None]:
    """Nothing that a test sets up for its process is there for the next one."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@pytest.fixture
def state() -> Iterator[GradientState]:
    """A loop state of this test alone."""
    GradientState._reset_state()
    yield GradientState()
    GradientState._reset_state()
