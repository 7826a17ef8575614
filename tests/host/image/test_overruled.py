"""Settings beside a bundle: what was set for this build is refused, what stands in a file is told and keeps nothing from being built."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from accelkit.host.config import loading
from accelkit.host.config.loading import Resolved
from accelkit.host.errors import UsageError
from accelkit.host.image import overruled
from accelkit.host.image.catalogue import Build
from accelkit.host.image.lockfile import LockedBase, LockedImage
from tests.support.kit import kit


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are named as seen from the working folder."""
    monkeypatch.chdir(tmp_path)


def bundled(**inputs: str) -> LockedImage:
    """What a bundle was made with: requirements by name -> digest."""
    return LockedImage(
        torch="2.13.0", build="cpu", python="3.11", platform="linux/amd64", base=LockedBase(name="base:1", digest="sha256:1"),
        recipe="sha256:r", inputs=dict(inputs), apt=("git",),
    )  # fmt: skip


def config(folder: Path, environ: Mapping[str, str] | None = None, **build: str) -> Resolved:
    """A kit.yaml with these settings of builds, loaded."""
    (folder / "kit.yaml").write_text("build:\n" + "".join(f"  {name}: {value}\n" for name, value in build.items()))
    return loading.load(given={}, config_file=None, cwd=folder, environ=environ or {})


def test_options_that_a_bundle_decides_are_refused_beside_it(tmp_path: Path) -> None:
    """By name, flags and variables: they would have no effect."""
    words = ("build", "cpu", "--from-bundle", ".", "--wheels", "x", "--apt", "git", "--locked")
    done = kit(*words, cwd=tmp_path, env={"KIT_TORCH": "2.9.0"})
    assert done.code == 2
    assert "--from-bundle with KIT_TORCH, --wheels, --apt, --locked: " in done.err


def test_a_file_is_told_what_has_no_effect_and_nothing_is_refused(tmp_path: Path) -> None:
    """Each setting that says something else, with its place and what the bundle has."""
    found = config(tmp_path, torch="2.12.1", python="'3.11'", cuda="'12.6'", apt="[git, tree]", requirements="[x.txt]")
    overruled.refuse(found, locked=False)

    assert overruled.told(found, bundled(), Build(), tmp_path) == [
        "kit.yaml:2: build.torch is 2.12.1, in the bundle it is 2.13.0",
        "kit.yaml:4: build.cuda is 12.6, in the bundle it is none",
        "kit.yaml:5: build.apt is git tree, in the bundle it is git",
        "kit.yaml:6: other requirements than those that the bundle was made with (none)",
    ]


def test_a_file_that_says_what_the_bundle_has_is_told_nothing(tmp_path: Path) -> None:
    """The project that a bundle was made of is checked out beside it; requirements are the same by their content."""
    (tmp_path / "x.txt").write_text("einops\n")
    found = config(
        tmp_path, torch="2.13.0", variant="cpu", base="base:1", apt="[git]", requirements="[x.txt]", project="."
    )
    (tmp_path / "requirements.txt").write_text("six\n")
    digests = {"x.txt": "sha256:", "requirements.txt": "sha256:"}
    for name in digests:
        digests[name] = overruled.requirements.gather([name], None, tmp_path)[0].digest

    assert overruled.told(found, bundled(**digests), Build(), tmp_path) == []
    (tmp_path / "x.txt").write_text("einops\nsix\n")
    (told,) = overruled.told(found, bundled(**digests), Build(), tmp_path)
    assert told.startswith("kit.yaml:6, kit.yaml:7: other requirements than those")


def test_where_files_would_come_from_is_refused_where_it_was_typed_alone(tmp_path: Path) -> None:
    """A variable that is set for all builds of a machine, and a file: they are listed; the network that a bundle has is none to tell."""
    found = config(tmp_path, {"KIT_INDEX_URL": "https://host/simple"}, wheels="w", network="host")
    overruled.refuse(found, locked=False)

    assert overruled.told(found, bundled(), Build(), tmp_path) == []
    assert overruled.of_fetching(found) == [
        "kit.yaml:2: build.wheels", "KIT_INDEX_URL: build.index_url", "kit.yaml:3: build.network",
    ]  # fmt: skip
    assert overruled.of_fetching(config(tmp_path, network="none")) == []
    with pytest.raises(UsageError, match="--from-bundle with KIT_TORCH, --locked"):
        overruled.refuse(config(tmp_path, {"KIT_TORCH": "2.13.0"}), locked=True)
