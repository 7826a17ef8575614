"""Containers whose user is not the caller, and callers that keep everything to themselves."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kit import kit, runs

LOOK = """
import json, os, pathlib
import accelkit.runtime.env
home = pathlib.Path.home()
kernels = pathlib.Path(os.environ["TRITON_CACHE_DIR"])
seen = kernels.exists()
kernels.mkdir(parents=True, exist_ok=True)
models = pathlib.Path(os.environ["HF_HOME"])
models.mkdir(parents=True, exist_ok=True)
(models / "model").touch()
print(json.dumps([os.getuid(), open("/etc/passwd").read().count("\\n"), seen]))
"""


@pytest.fixture
def strict() -> Iterator[None]:
    """A caller whose files are nobody else's."""
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.skipif(os.getuid() != 0, reason="only root may have another user own what the ranks write")
def test_another_user_finds_all_it_needs_and_a_home_of_its_own(tmp_path: Path, strict: None) -> None:
    """With umask 077: the staged runtime, the spec and the names of users can be read; the home is that user's alone; kept for the next."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "look.py").write_text(LOOK)
    tmp_path.chmod(0o755)
    work.chmod(0o755)
    (work / "look.py").chmod(0o644)
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    found = []
    for user in ("1000", "1000", "0"):
        done = kit("run", "--image", "cpu", "--user", user, "look.py", cwd=work, env=cache)
        assert done.code == 0, done.out + done.err
        found.append(json.loads(done.out.split("] ", 1)[1]))
    homes = {p.name: p for p in (tmp_path / "cache" / "accelkit" / "home").iterdir()}

    assert found == [[1000, 2, False], [1000, 2, True], [0, 1, False]]
    assert sorted(homes) == ["0", "1000"]
    [home] = homes["1000"].iterdir()
    assert (home.stat().st_uid, home.stat().st_mode & 0o777) == (1000, 0o700)
    assert (tmp_path / "cache" / "accelkit" / "downloads" / "1000" / "model").exists()
    assert {run["state"] for run in runs(work)} == {"ok"}


def test_the_engines_own_logs_have_a_limit(tmp_path: Path) -> None:
    """What a rank prints for days does not fill the engine's disk."""
    (tmp_path / "s.py").write_text("")
    shown = kit("run", "--image", "cpu", "--dry-run", "s.py", cwd=tmp_path).out

    assert "max-size: 64m" in shown
