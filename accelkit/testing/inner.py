"""The half of the plug-in that runs on every rank: pytest for one test, its reports left in the exchange folder.

pytest is the image's own where it has one, else the host's, which the outer half mounts (KIT_PYTEST names the folder).
"""

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

REPORTS = "report-rank-{rank}.json"
"""File of the exchange folder that a rank leaves: a list of serialised reports."""


class Reporter:
    """Collects every report of this rank's session."""

    def __init__(self, path: Path) -> None:
        """`path`: where the reports go at the end."""
        self._path = path
        self._reports: list[Any] = []
        self._config: Any = None

    def pytest_configure(self, config: Any) -> None:
        """Keep the config, which knows how to serialise."""
        self._config = config

    def pytest_runtest_logreport(self, report: Any) -> None:
        """A report of set-up, call or tear-down."""
        self._add(report)

    def pytest_collectreport(self, report: Any) -> None:
        """A module that could not be imported is this test's failure."""
        if report.failed:
            self._add(report)

    def pytest_sessionfinish(self) -> None:
        """Write them down."""
        self._path.write_text(json.dumps(self._reports), encoding="utf-8")

    def _add(self, report: Any) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._reports.append(data)


def main() -> None:
    """Run the one test that the arguments name: NODEID ROOTDIR IMPORT-MODE."""
    nodeid, root, mode = sys.argv[1:4]
    if importlib.util.find_spec("pytest") is None:
        sys.path.append(os.environ["KIT_PYTEST"])
    import pytest

    from accelkit.testing import plugin

    exchange = Path(os.environ["KIT_SPEC"]).parent
    rank = os.environ["RANK"]
    plugins: list[Any] = [Reporter(exchange / REPORTS.format(rank=rank))]
    options = ["-o", "addopts=", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestConfigWarning"]
    # A folder of its own for tmp_path, gone with the run: in pytest's own, sessions clear away under each other.
    options += ["--basetemp", str(exchange / f"tmp-of-rank-{rank}")]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # accelkit itself has no asserts to show
    if not _is_installed():
        plugins.append(plugin)
    sys.exit(
        int(
            pytest.main(
                [f"{root}/{nodeid}", "--rootdir", root, f"--import-mode={mode}", "-q", *options], plugins=plugins
            )
        )
    )


def _is_installed() -> bool:
    """Whether pytest finds the outer half by itself (accelkit is installed here, not only staged)."""
    from importlib.metadata import entry_points

    return any(entry.value == "accelkit.testing.plugin" for entry in entry_points(group="pytest11"))


if __name__ == "__main__":
    main()
