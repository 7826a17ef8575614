"""Where things lie on the host."""

from pathlib import Path

import pytest

from accelkit.host import paths


def test_a_relative_folder_in_a_variable_counts_for_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Absolute folders are taken; others would mean another place in each working folder, and none to an engine."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    assert paths.cache_home() == tmp_path / ".cache" / "accelkit"
    assert paths.config_home() == tmp_path / "config" / "accelkit"
