"""What every test starts from: a home of its own, and nothing of the caller's settings."""

import gc
import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.worlds import Worlds


def pytest_configure() -> None:
    """Programs that tests start take SIGHUP and SIGINT as programs do, also where the tests were started by `nohup` or with `&`."""
    for number in (signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)  # unlike an ignored signal, a handler is not inherited


def pytest_collection_finish() -> None:
    """What tests are collected from stays: collections of garbage, which many tests ask for, need not look through it each time."""
    gc.freeze()


@pytest.fixture(scope="session")
def config_homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folders for the settings of one test each."""
    top = tmp_path_factory.mktemp("config-homes")
    return map(top.joinpath, map(str, itertools.count()))


@pytest.fixture(autouse=True)
def clean_settings(config_homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """No KIT_* variable and no user default of the caller reaches a test; returns the config folder in force."""
    folder = next(config_homes)
    folder.mkdir()
    if "KIT_SPEC" in os.environ:  # on a rank: kit's own variables are what it runs by
        return folder
    for name in [name for name in os.environ if name.startswith("KIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    return folder


@pytest.fixture(scope="session")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    """Worlds of ranks that run checks, each once."""
    return Worlds(tmp_path_factory)
