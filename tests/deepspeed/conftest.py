"""These tests run where DeepSpeed is installed; the tier `deepspeed` of ci/test makes such an environment."""

import importlib.util
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip them elsewhere, and say what runs them."""
    if importlib.util.find_spec("deepspeed") is None:
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="deepspeed is not installed: ci/test deepspeed runs these"))
