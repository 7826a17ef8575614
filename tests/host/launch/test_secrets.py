"""Where secrets lie while a run lives."""

import os
from pathlib import Path

import pytest

from accelkit.host.errors import KitError
from accelkit.host.launch import secrets


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the system gives for such files."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def test_a_folder_that_was_open_is_closed(base: Path) -> None:
    """Whatever its permissions were: it is the caller's."""
    top = base / f"accelkit-{os.getuid()}"
    top.mkdir()
    top.chmod(0o777)
    secrets.lay_out("r", ["TOKEN"], {"TOKEN": "x"})

    assert {p.stat().st_mode & 0o777 for p in (top, top / "r")} == {0o700}
    assert (top / "r" / "TOKEN").read_text() == "x"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to somebody else")
def test_a_folder_of_somebody_elses_is_refused(base: Path) -> None:
    """Its owner could read what is put there."""
    top = base / f"accelkit-{os.getuid()}"
    top.mkdir()
    os.chown(top, 65534, 65534)

    with pytest.raises(KitError, match="not a folder of yours"):
        secrets.lay_out("r", ["TOKEN"], {"TOKEN": "x"})
    assert not list(top.iterdir())


def test_a_link_is_refused(base: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Who made the link decides where it leads."""
    (base / f"accelkit-{os.getuid()}").symlink_to(tmp_path_factory.mktemp("elsewhere"))

    with pytest.raises(KitError, match="not a folder of yours"):
        secrets.lay_out("r", ["TOKEN"], {"TOKEN": "x"})
