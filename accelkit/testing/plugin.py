"""The pytest plug-in: `@pytest.mark.ranks(...)` runs a test's body on every rank.

    @pytest.mark.ranks(nodes=2, procs_per_node=1, image="cpu")
    def test_sum():
        ...

Cheap to import: what launches is imported when the first marked test runs. On a rank it only knows the marker.
"""

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

MARKER = (
    "ranks(nodes=1, procs_per_node=2, image='cpu', timeout='120s', env=()): run the test's body on every rank, "
    "in containers or, with --ranks-on local, as local processes"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """--ranks-on, and an ini option of the same meaning."""
    group = parser.getgroup("accelkit")
    group.addoption(
        "--ranks-on", choices=("docker", "local"), default=None, help="where tests marked ranks run (docker)"
    )
    parser.addini("ranks_on", "where tests marked ranks run: docker or local", default="docker")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", MARKER)


def on_a_rank() -> bool:
    """Whether this very session was started on a rank."""
    return "KIT_SPEC" in os.environ


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a marked test on its ranks; leave every other test, and everything on a rank, to pytest."""
    marker = item.get_closest_marker("ranks")
    if marker is None or on_a_rank():
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _reports(item, marker):
        item.ihook.pytest_runtest_logreport(report=report)
    # What earlier tests set up for this module is torn down here as after any test: nobody else does it for us.
    item.session._setupstate.teardown_exact(nextitem)  # noqa: SLF001  (pytest has no public word for it)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _reports(item: pytest.Item, marker: pytest.Mark) -> "Iterator[pytest.TestReport]":
    from accelkit.testing import outer

    where = item.config.getoption("--ranks-on") or item.config.getini("ranks_on")
    return iter(outer.run(item, marker, where))
