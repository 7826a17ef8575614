"""What the user asks for on top: which files are taken, which are refused, and by what name."""

from pathlib import Path

import pytest

from accelkit.host.errors import UsageError
from accelkit.host.image import requirements


def refusal(files: list[str], project: str | None, folder: Path) -> UsageError:
    """The refusal of what is asked for."""
    with pytest.raises(UsageError) as told:
        requirements.gather(files, project, folder)
    return told.value


def test_a_project_is_its_lock_else_its_pyproject_else_its_requirements(tmp_path: Path) -> None:
    """The most exact of the three is taken; the kind is told by the name."""
    for name, kind in (("requirements.txt",) * 2, ("pyproject.toml",) * 2, ("uv.lock",) * 2):
        (tmp_path / name).write_text("")
        (found,) = requirements.gather([], ".", tmp_path)
        assert (found.path, found.kind) == (tmp_path / name, kind)
    (given,) = requirements.gather([], "pyproject.toml", tmp_path)
    assert given.kind == "pyproject.toml"


def test_condas_files_are_refused_by_name(tmp_path: Path) -> None:
    """As a file of requirements, and as all that a project has."""
    (tmp_path / "environment.yml").write_text("dependencies: []\n")

    assert "environment.yml is Conda's" in refusal(["environment.yml"], None, tmp_path).message
    told = refusal([], ".", tmp_path)
    assert "environment.yml is Conda's" in told.message
    assert "uv.lock" in (told.hint or "")


def test_files_that_are_not_there_or_point_elsewhere_are_refused(tmp_path: Path) -> None:
    """File, line and flag are named."""
    (tmp_path / "more.txt").write_text("numpy\n-r other.txt\n")

    assert refusal(["none.txt"], None, tmp_path).message == "--requirements none.txt: not there"
    assert "more.txt:2: -r other.txt" in refusal(["more.txt"], None, tmp_path).message
    assert "neither uv.lock nor pyproject.toml" in refusal([], ".", tmp_path).message


def test_mentions_are_of_the_package_alone(tmp_path: Path) -> None:
    """With and without a version, in requirements and in a project's list; not of packages whose names begin alike."""
    path = tmp_path / "requirements.txt"
    for text, expected in {
        "torchvision\n": True, "TorchVision>=0.2\n": True, "torchvision[x]==1 ; python_version > '3'\n": True,
        "torchvision-extra\n": False, "# torchvision\n": False, "": False,
    }.items():  # fmt: skip
        path.write_text(text)
        assert requirements.mentions(requirements.gather([path.name], None, tmp_path), "torchvision") is expected, text
    project = tmp_path / "pyproject.toml"
    project.write_text('[project]\ndependencies = [\n  "torchvision>=0.2",\n]\n')
    assert requirements.mentions(requirements.gather([], "pyproject.toml", tmp_path), "torchvision")


def test_a_lock_of_uvs_leaves_torch_to_the_image() -> None:
    """Torch and what comes with it go; everything else stays; its version is told."""
    exported = "einops==0.8\nnvidia-cublas-cu12==12.8\ntorch==2.9.0\ntriton==3.5\ncuda-bindings==1\nnumpy==2.4\n"

    assert requirements.without_torch(exported) == "einops==0.8\nnumpy==2.4\n"
    assert requirements.torch_of(exported) == "2.9.0"
    assert requirements.torch_of("einops==0.8\n") is None


def test_a_file_that_is_not_utf_8_is_refused_with_its_line(tmp_path: Path) -> None:
    """Also a later line; a byte order mark is no part of the first package's name."""
    path = tmp_path / "requirements.txt"
    path.write_bytes("six\n# für\n".encode("latin-1"))
    told = refusal([path.name], None, tmp_path)
    assert "requirements.txt:2: not UTF-8 (byte 0xfc)" in told.message
    path.write_bytes(b"\xef\xbb\xbfsix\n")
    assert requirements.gather([path.name], None, tmp_path)[0].text == "six\n"
