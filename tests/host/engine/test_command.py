"""The docker command's own settings: one place for all who go by them."""

import subprocess
import sys
from pathlib import Path

import pytest

from accelkit.host.engine import command, plugins


def test_compose_is_found_where_the_docker_command_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the folders that its settings name, before those of the settings' own folder; a file of the name that does not run is none."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    for name in ("extra", "cli-plugins"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "docker-compose").write_text("#!/bin/sh\n")
    (tmp_path / "config.json").write_text(
        f'{{"cliPluginsExtraDirs": ["{tmp_path / "extra"}", 1], "currentContext": "far"}}'
    )

    assert command.settings()["currentContext"] == "far"
    (tmp_path / "cli-plugins" / "docker-compose").chmod(0o755)
    assert plugins.compose() == [str(tmp_path / "cli-plugins" / "docker-compose")]
    (tmp_path / "extra" / "docker-compose").chmod(0o755)
    assert plugins.compose() == [str(tmp_path / "extra" / "docker-compose")]
    (tmp_path / "config.json").write_text('{"cliPluginsExtraDirs": 1}')
    assert plugins.compose() == [str(tmp_path / "cli-plugins" / "docker-compose")]


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"{", None])
def test_settings_that_are_damaged_or_not_there_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    """The docker command tells of them; kit goes on as if there were none."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)

    assert command.settings() == {}


def test_they_are_read_without_the_sdk() -> None:
    """A run asks before the SDK is imported."""
    code = "import sys, accelkit.host.engine.plugins; print('docker' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"
