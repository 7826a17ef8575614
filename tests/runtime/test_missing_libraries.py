"""What is said of a library that is not there."""

import pytest

from accelkit.contract import names
from accelkit.runtime.available import how_to_install


def test_the_advice_fits_where_the_script_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container has the packages of its image: pip there would be of no use for the next run."""
    monkeypatch.delenv(names.ENV_IMAGE_DIGEST, raising=False)
    assert how_to_install("tqdm") == "pip install tqdm"
    monkeypatch.setenv(names.ENV_IMAGE_DIGEST, "sha256:0")
    assert "kit build" in how_to_install("tqdm")
    assert "'tqdm'" in how_to_install("tqdm")
    assert "pip" not in how_to_install("tqdm")
