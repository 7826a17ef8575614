"""A project with a lock of uv's becomes an image, a bundle, and on a machine without a network the same image; with wheels of moments."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from accelkit.host import process
from accelkit.host.image import digests, uv
from tests.support.kit import ROOT, kit
from tests.support.wheels import of_image, wheel

TAG = f"accelkit-test-bundle-{os.getpid()}"
PROJECT = """
[project]
name = "mine"
version = "0.1"
requires-python = ">=3.10"
dependencies = ["kitten", "member", "torch"]
[tool.uv]
find-links = ["{wheels}"]
no-index = true
[tool.uv.workspace]
members = ["member"]
[tool.uv.sources]
member = {{ workspace = true }}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project with uv.lock and kit.yaml, whose packages are wheels of one module each."""
    folder = tmp_path_factory.mktemp("project")
    wheels = folder / "wheels"
    (folder / "member").mkdir()
    wheels.mkdir()
    of_image(wheels)
    wheel(wheels, "six", "1.0")
    wheel(wheels, "purr", "1.0")
    wheel(wheels, "kitten", "1.0", ("purr",))
    wheel(wheels, "kitten", "2.0", ("purr",))
    (folder / "pyproject.toml").write_text(PROJECT.format(wheels=wheels).replace("kitten", "kitten<2"))
    (folder / "member" / "pyproject.toml").write_text(
        '[project]\nname = "member"\nversion = "1"\ndependencies = ["six"]\n'
    )
    process.run([uv.find(), "lock", "--project", str(folder)], check=True)
    base = subprocess.check_output([str(ROOT / "ci" / "base-image")], text=True).strip()
    lines = [f"base: {base}", "network: host", "project: .", f"wheels: {wheels}"]
    lines += [f"ca: {os.environ['SSL_CERT_FILE']}"] if "SSL_CERT_FILE" in os.environ else []
    (folder / "kit.yaml").write_text("version: 1\nbuild:\n" + "".join(f"  {line}\n" for line in lines))
    yield folder
    tags = [f"{TAG}:{name}" for name in ("here", "there")]
    subprocess.run(["docker", "rmi", "--force", *tags], capture_output=True, check=False)


@pytest.fixture(scope="module")
def built(project: Path) -> str:
    """The project's image."""
    done = kit("build", "cpu", "--reproducible", "--tag", f"{TAG}:here", cwd=project)
    assert done.code == 0, done.err
    assert "uv.lock: member: not installed, since your own code is mounted" in done.err
    return f"{TAG}:here"


def identity(tag: str) -> str:
    """The engine's ID of an image."""
    return subprocess.check_output(["docker", "image", "inspect", "--format", "{{.Id}}", tag], text=True).strip()


def installed(tag: str) -> list[str]:
    """Packages in an image, with their versions."""
    code = "import importlib.metadata as m; print(*sorted(d.name + '==' + d.version for d in m.distributions()))"
    return subprocess.check_output(["docker", "run", "--rm", tag, "python3", "-c", code], text=True).split()


def test_a_project_that_uv_has_locked_is_built(project: Path, built: str) -> None:
    """Its packages in the locked versions, torch of the image's build, what a member needs; what was added since is missed first."""
    found = installed(built)
    assert {"kitten==1.0", "purr==1.0", "six==1.0"} <= set(found)
    assert any(re.fullmatch(r"torch==[0-9.]+\+cpu", one) for one in found)
    assert "member==1" not in found

    path = project / "pyproject.toml"
    text = path.read_text()
    path.write_text(text.replace("kitten<2", "kitten"))
    done = kit("build", "cpu", "--locked", "--tag", built, cwd=project)
    path.write_text(text)
    assert done.code == 2
    assert f"uv lock --project {project}" in done.err


def test_a_comparison_tells_of_the_image_that_is_here(project: Path, built: str) -> None:
    """Built again without a cache it is the same, and is named as the engine and `kit build` name it; the image stays as it was."""
    done = kit("build", "cpu", "--locked", "--verify", "--tag", built, cwd=project)
    assert done.code == 0, done.err
    assert done.out == f"{built}  {identity(built)[:19]}  built again, it is the same, bit for bit\n"


def another_kit(folder: Path) -> Path:
    """A copy of this kit that has no image `cpu`."""
    for name in ("accelkit", "images"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("cpu", "__pycache__"))
    return folder


def test_a_bundle_gives_the_same_image_elsewhere(project: Path, built: str, tmp_path: Path) -> None:
    """By a kit with other images, beside other settings, which are told; who may read the folder may read all of it."""
    bundle = tmp_path / "bundle"
    made = kit("bundle", "cpu", str(bundle), cwd=project)
    assert made.code == 0, made.err
    assert {path.stat().st_mode & 0o777 for path in bundle.rglob("*") if path.is_file()} <= {0o644, 0o755}
    subjects = json.loads((bundle / "provenance.json").read_text())["subject"]
    assert {"base.tar", "kit.lock", "recipe/Dockerfile"} <= {one["name"] for one in subjects}
    assert all(one["digest"]["sha256"] == digests.of_file(bundle / one["name"]) for one in subjects)

    other = {"PYTHONPATH": str(another_kit(tmp_path / "kit"))}
    (tmp_path / "kit.yaml").write_text("build:\n  torch: 2.0.0\n  network: host\n")
    done = kit(
        "build", "cpu", "--from-bundle", "bundle", "--reproducible", "--tag", f"{TAG}:there", cwd=tmp_path, env=other
    )
    assert done.code == 0, done.err
    assert "kit.yaml:2: build.torch is 2.0.0, in the bundle it is" in done.err
    assert identity(f"{TAG}:there") == identity(built)
