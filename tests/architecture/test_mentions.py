"""What no file of the repository names: the machine it was written on, and where its packages came from.

Nothing is spelt out here either: the names are taken from the machine on which the test runs.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from pip._internal.models.index import PyPI

from tests.architecture import rules

APT_SOURCES = Path("/etc/apt")
TRACKER_NUMBER = re.compile(r"\bissue #?\d+\b", re.IGNORECASE)


def texts() -> Iterator[tuple[str, str]]:
    """The text files of the repository, by path."""
    for name in rules.repository_files():
        try:
            yield name, (rules.ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def package_hosts() -> set[str]:
    """The hosts that pip and apt fetch packages from on this machine."""
    files = [path for path in APT_SOURCES.rglob("*") if path.suffix in {".list", ".sources"}]
    apt = {host for path in files for host in re.findall(r"://([^/\s]+)", path.read_text(errors="replace"))}
    return {host for host in {PyPI.netloc, PyPI.file_storage_domain, *apt} if "." in host}


def test_no_package_registry_is_named() -> None:
    """Package addresses come from the machine's own settings, so that mirrors and proxies work everywhere."""
    problems = [f"{path}: {host}" for path, text in texts() for host in package_hosts() if host in text]

    assert not problems, rules.complain(problems, "no file names a package registry's host")


def test_no_path_of_this_machine_is_named() -> None:
    """No file holds the absolute path of the checkout, or one beside it."""
    here = f"{rules.ROOT}/"
    deep_enough = len(rules.ROOT.parts) > 2
    beside = "../" + "shared"
    problems = [path for path, text in texts() if (deep_enough and here in text) or beside in text]

    assert not problems, rules.complain(problems, "no file names a path of this machine")


def test_no_tracker_number_is_named() -> None:
    """Reasons are written out where they are needed, not left in a tracker."""
    problems = [f"{path}: {found.group()}" for path, text in texts() for found in TRACKER_NUMBER.finditer(text)]

    assert not problems, rules.complain(problems, "no file refers to a number in a tracker")
