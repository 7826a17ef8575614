"""The list of what is installed."""

from importlib.metadata import distributions
from pathlib import Path

from accelkit.contract.packages import installed, normalized


def test_it_is_what_the_standard_library_finds() -> None:
    """Every distribution of this interpreter, with the version of the one that is found first."""
    expected: dict[str, str] = {}
    for found in distributions():
        if found.metadata["Name"]:
            expected.setdefault(normalized(found.metadata["Name"]), found.version)

    assert installed() == expected
    assert expected["torch"].startswith("2.")
    assert list(installed()) == sorted(expected)


def test_odd_folders(tmp_path: Path) -> None:
    """Left by a broken removal, of setuptools' old kinds, twice on the path, not there, no folder."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, name, version in (
        (first, "Some_Thing", "1.0+cpu"),
        (second, "some_thing", "2.0"),
        (second, "other", "3!1"),
    ):
        (folder / f"{name}-{version}.dist-info").mkdir(parents=True)
        (folder / f"{name}-{version}.dist-info" / "METADATA").touch()
    (first / "gone-1.0.dist-info").mkdir()
    (first / "old.egg-info").mkdir()
    (first / "old.egg-info" / "PKG-INFO").write_text("Metadata-Version: 1.0\nName: Old.One\nVersion: 0.1\n\nName: no\n")
    (first / "older-2-py3.11.egg-info").write_text("Name: older\nVersion: 2\n")
    (first / "empty.egg-info").mkdir()
    (tmp_path / "file").touch()
    path = [str(place) for place in (first, tmp_path / "nowhere", tmp_path / "file", second, first)]

    assert installed(path) == {"old-one": "0.1", "older": "2", "other": "3!1", "some-thing": "1.0+cpu"}
    assert installed([]) == {}
