"""What cannot be is told in words, with what is allowed, before anything is resolved or built."""

import dataclasses
import shutil
from pathlib import Path

import pytest

from accelkit.host import paths
from accelkit.host.config.model import BuildConfig
from accelkit.host.errors import KitError, UsageError
from accelkit.host.image import catalogue, contexts, contradictions, debian, inputs, lockfile, resolve, sbom
from tests.support.kit import kit
from tests.support.wheels import wheel

NO_ENGINE = {"DOCKER_HOST": "unix:///nowhere.sock"}


def test_an_index_with_other_braces_is_refused(tmp_path: Path) -> None:
    """{build} alone stands for something; no login in the address is told."""
    for url in ("https://me:S3cret@host/{x}", "https://host/{build", "https://host/}", "https://host/{}"):
        with pytest.raises(UsageError, match=r"--torch-index https://host/.*braces") as told:
            inputs.gather("cpu", BuildConfig(torch_index=url), tmp_path)
        assert "S3cret" not in told.value.message


def test_platforms_of_an_unknown_architecture_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the check of the data, and where one is asked for, with those that can be built."""
    shutil.copytree(paths.data_folder("images") / "cpu", tmp_path / "images" / "cpu")
    path = tmp_path / "images" / "cpu" / "image.yaml"
    spec = catalogue.load("cpu")
    path.write_text(path.read_text().replace("linux/arm64", "linux/riscv64"))
    monkeypatch.setattr(paths, "data_folder", lambda name: tmp_path / name)

    with pytest.raises(UsageError, match=r"--platform linux/riscv64: image cpu is made for linux/amd64$"):
        inputs.gather("cpu", BuildConfig(platform="linux/riscv64"), tmp_path)
    odd = dataclasses.replace(spec, platforms=("linux/riscv64",))
    assert "platform linux/riscv64" in next(contradictions.of_spec("cpu", odd, catalogue.compatibility("cpu")))


def test_damaged_data_of_an_image_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not UTF-8; a folder where a file should be is none of the images."""
    shutil.copytree(paths.data_folder("images") / "cpu", tmp_path / "images" / "cpu")
    (tmp_path / "images" / "cpu" / "image.yaml").write_bytes(b"\xff")
    monkeypatch.setattr(paths, "data_folder", lambda name: tmp_path / name)
    with pytest.raises(KitError, match=r"image.yaml: .*utf-8"):
        catalogue.load("cpu")


def test_a_place_that_cannot_be_written_is_told_first(tmp_path: Path) -> None:
    """Documents into a file, and a lock where no file can be made."""
    (tmp_path / "file").touch()
    for place in ("file", "file/below"):
        done = kit("build", "cpu", "--sbom", place, cwd=tmp_path, env=NO_ENGINE)
        assert done.code == 2
        assert f"--sbom {place}: {tmp_path / 'file'} is no folder" in done.err
    sbom.check(tmp_path / "not" / "yet")
    lockfile.check_folder(tmp_path / "kit.lock")
    with pytest.raises(KitError, match=r"kit.lock: it cannot be written"):
        lockfile.check_folder(Path("/proc/kit.lock"))
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_a_folder_for_a_file_is_told_and_a_file_for_a_folder(tmp_path: Path) -> None:
    """By the flag, before buildx or uv meets it."""
    (tmp_path / "file").touch()
    for config, said in (
        (BuildConfig(ca="."), "--ca .: not a file"),
        (BuildConfig(wheels="file"), "--wheels file: not a folder"),
        (BuildConfig(ca="no"), "--ca no: not there"),
        (BuildConfig(requirements=["."]), "--requirements .: a folder"),
        (BuildConfig(index_url="file:///x"), "--index-url file:///x: not an address of http"),
        (BuildConfig(torch_index="x"), "--torch-index x: not an address of http"),
    ):
        with pytest.raises(UsageError) as told:
            inputs.gather("cpu", config, tmp_path)
        assert told.value.message == said


def test_a_wheel_of_the_same_name_and_size_is_another_one(tmp_path: Path) -> None:
    """Its list of files has other digests, by which an image that was built from it is not up to date; reading it again changes nothing."""
    wheel(tmp_path, "six", "1.0", ("einops<1",))
    before = inputs.listing(tmp_path)
    size = next(tmp_path.glob("six*")).stat().st_size
    assert inputs.listing(tmp_path) == before
    wheel(tmp_path, "six", "1.0", ("einops<2",))

    assert next(tmp_path.glob("six*")).stat().st_size == size
    assert inputs.listing(tmp_path) != before


def test_a_comparison_goes_nowhere(tmp_path: Path) -> None:
    """--verify compares: options that would write the image or tell of it are refused, not forgotten."""
    for words in (("--output", "tar"), ("--push",), ("--sbom", "docs")):
        done = kit("build", "cpu", "--verify", *words, cwd=tmp_path, env=NO_ENGINE)
        assert done.code == 2
        assert f"--verify with {words[0]}: " in done.err


def test_commas_in_paths_are_part_of_them() -> None:
    """Buildx and uv take lists that commas separate."""
    assert contexts.secret("ca", Path("/a,b/ca.pem")) == '--secret=id=ca,"src=/a,b/ca.pem"'
    assert contexts.secret("ca", Path("/a/ca.pem")) == "--secret=id=ca,src=/a/ca.pem"
    assert resolve._link(Path("/a,b c")) == "file:///a%2Cb%20c"
    assert resolve._link(Path("/a b")) == "/a b"


@pytest.mark.parametrize("name", ["tree-", "git=1:2.39-", "-tree", "a b", "Tree", ""])
def test_what_is_no_debian_package_is_refused(name: str) -> None:
    """Apt would take a name with a hyphen at its end for a package that is to go."""
    with pytest.raises(UsageError, match="not a Debian package"):
        debian.check((name,))
    debian.check(("g++", "git=1:2.39.5-0+deb12u2"))
