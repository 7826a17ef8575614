"""Every tracker with its real library, in a process of its own, without a network: what was logged is what the library kept."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from accelkit.runtime.tracking import get_available_trackers, registry

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("name", sorted(registry.REGISTRY))
def test_what_is_logged_is_kept(name: str, tmp_path: Path) -> None:
    """Configuration, numbers over steps, texts, groups, images, tables and files, through the library's own way of reading."""
    if name != "jsonl" and name not in get_available_trackers():
        pytest.skip(f"{registry.REGISTRY[name].install} is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "tests.runtime.tracking.library_script", name],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert "kept" in done.stdout.split()
