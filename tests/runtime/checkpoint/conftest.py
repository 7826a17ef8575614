"""Fixtures of the tests about checkpoints."""

from collections.abc import Iterator

import pytest
import torch

from accelkit import AcceleratorState, GradientState


@pytest.fixture(autouse=True)
def fresh_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No state of another test, no world of the caller's."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    state = torch.get_rng_state()
    yield
    torch.set_rng_state(state)
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
