"""Where images go: what is asked of buildx, and that an archive belongs to the build that wrote it, whole or not at all."""

import hashlib
from pathlib import Path

import pytest

from accelkit.host.errors import BuildError, UsageError
from accelkit.host.image import output
from accelkit.host.image.output import Output
from tests.support.kit import kit


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A docker command that writes down its words, a line a call, into this file; it fails where a file `refuse` lies beside it."""
    program, calls = tmp_path / "bin" / "docker", tmp_path / "calls"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >>{calls}\n[ ! -e {program.parent}/refuse ] || {{ echo no; exit 1; }}\n')
    program.chmod(0o755)
    calls.touch()
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return calls


def archive_of(words: list[str]) -> Path:
    """The file that buildx is told to write."""
    return Path(words[0].partition("dest=")[2].rstrip('"'))


def build(place: Output, text: str, *, reproducible: bool = False, error: BaseException | None = None) -> Path:
    """A build that writes this text as its archive, and fails with `error`; the archive's place."""
    with place.made("t:1", reproducible=reproducible) as words:
        archive_of(words).write_text(text)
        if error is not None:
            raise error
    return archive_of(words)


def test_outputs_are_read_from_one_flag(tmp_path: Path) -> None:
    """Kind and file; pushing an archive, folders that are not there, and what is no file (it would be replaced) are refused."""
    assert output.parse("tar=", push=False, folder=tmp_path, name="cpu").file == tmp_path / "accelkit-cpu.tar"
    assert output.parse("oci", push=False, folder=tmp_path, name="cpu").file == tmp_path / "accelkit-cpu.oci.tar"
    assert output.parse("tar=x.tar", push=False, folder=tmp_path, name="cpu").shown("t:1", reproducible=True) == [
        f"--output=type=docker,name=t:1,rewrite-timestamp=true,dest={tmp_path / 'x.tar'}"
    ]
    assert output.parse(None, push=True, folder=tmp_path, name="cpu").shown("t:1", reproducible=False) == ["--load"]
    refused = (("zip", False), ("tar", True), ("tar=no/where.tar", False), ("tar=.", False), ("tar=/dev/null", False))
    for text, push in refused:
        with pytest.raises(UsageError):
            output.parse(text, push=push, folder=tmp_path, name="cpu")


def test_only_the_build_that_wrote_an_archive_loads_it(tmp_path: Path, docker: Path) -> None:
    """A reproducible build that failed leaves nothing, and a plain one of the same tag afterwards loads nothing."""
    with pytest.raises(BuildError, match="failed"):
        build(Output(), "half", reproducible=True, error=BuildError("failed"))
    with Output().made("t:1", reproducible=False) as words:
        assert words == ["--load"]
    assert docker.read_text() == ""
    archive = build(Output(), "whole", reproducible=True)
    assert docker.read_text() == f"load --quiet --input {archive}\n"
    (tmp_path / "bin" / "refuse").touch()
    with pytest.raises(BuildError, match="docker load: no"):
        build(Output(), "whole", reproducible=True)

    assert [path for path in (tmp_path / "cache").rglob("*") if path.name != "builds" and path.name != "accelkit"] == []


def test_an_archive_that_is_there_stays_when_the_build_fails(tmp_path: Path) -> None:
    """It is replaced by a whole one or not at all, and nothing else is left in its folder."""
    file = tmp_path / "x.tar"
    file.write_text("old")
    for error in (BuildError("failed"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            build(Output(file=file), "half", error=error)
        assert file.read_text() == "old"
    build(Output(file=file), "new")

    assert file.read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["x.tar"]


def test_an_archive_is_told_by_its_own_digest(tmp_path: Path) -> None:
    """What its provenance names: the file as it lies there; an engine's image has another one, its ID."""
    place = Output(file=tmp_path / "x.tar")
    build(place, "new")

    assert place.digests == {"x.tar": hashlib.sha256(b"new").hexdigest()}
    assert Output().digests == {}


def test_a_comma_in_a_path_is_part_of_the_path() -> None:
    """Buildx separates options by commas; a field that holds one, or a quote, is quoted as CSV has it."""
    shown = Output(file=Path('/a,b/"x".tar')).shown("t:1", reproducible=False)
    assert shown == ['--output=type=docker,name=t:1,"dest=/a,b/""x"".tar"']


@pytest.mark.parametrize(
    "tag", ["cpu", "team/cpu:1.0", "localhost:5000/a__b/c-d:X_1", "Registry.example/cpu", "[::1]:5000/cpu:1"]
)
def test_tags_that_an_engine_takes_are_taken(tag: str) -> None:
    """With and without a host, a port and a tag."""
    assert output.check_tag(tag) == tag


@pytest.mark.parametrize(
    "tag", ["", " ", "Bad Tag", "CPU", "cpu:", "cpu:a b", "a//b", "cpu@sha256:1", "-cpu", "a/b/", "cpu:" + "x" * 129]
)
def test_a_tag_that_is_none_is_refused_before_anything_is_done(tag: str, tmp_path: Path) -> None:
    """Also the empty one of a variable that is not set: it does not mean the image's own tag."""
    done = kit("build", "cpu", "--tag", tag, "--print", cwd=tmp_path, env={"DOCKER_HOST": "unix:///nowhere.sock"})

    assert done.code == 2
    assert f"--tag {tag!r}: not a tag" in done.err
