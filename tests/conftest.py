"""What every test starts from: a home of its own, and nothing of the caller's settings."""

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def clean_settings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No KIT_* variable and no user default of the caller reaches a test; returns the config folder in force."""
    if "KIT_SPEC" in os.environ:  # on a rank: kit's own variables are what it runs by
        return tmp_path_factory.mktemp("config-home")
    for name in [name for name in os.environ if name.startswith("KIT_")]:
        monkeypatch.delenv(name)
    folder = tmp_path_factory.mktemp("config-home")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    return folder
