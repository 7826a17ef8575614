"""`kit lock` and builds by it: what is locked is what is installed, and whatever was changed afterwards is refused by name."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kit import ROOT, Ended, kit

TAG = f"accelkit-test-lock-{os.getpid()}:latest"
BASE = f"accelkit-test-base-{os.getpid()}:latest"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project with a locked image, built; its base has a tag of its own."""
    folder = tmp_path_factory.mktemp("project")
    base = subprocess.check_output([str(ROOT / "ci" / "base-image")], text=True).strip()
    subprocess.check_call(["docker", "tag", base, BASE])
    wheels = os.environ.get("PIP_FIND_LINKS", "")
    lines = [f"base: {BASE}", "network: host", "requirements: [requirements.txt]"]
    lines += [f"ca: {os.environ['SSL_CERT_FILE']}"] if "SSL_CERT_FILE" in os.environ else []
    lines += [f"wheels: {wheels}"] if Path(wheels).is_dir() else []
    (folder / "kit.yaml").write_text("version: 1\nbuild:\n" + "".join(f"  {line}\n" for line in lines))
    (folder / "requirements.txt").write_text("einops\n")
    done = kit("build", "cpu", "--tag", TAG, cwd=folder)
    assert done.code == 0, done.err
    yield folder
    subprocess.run(["docker", "rmi", "--force", TAG, BASE], capture_output=True, check=False)


@pytest.fixture
def lock(project: Path) -> Iterator[Path]:
    """The lock, as it was afterwards."""
    path = project / "kit.lock"
    text = path.read_text()
    yield path
    path.write_text(text)


@pytest.fixture
def changed(project: Path) -> Iterator[Path]:
    """The requirements with one line more."""
    path = project / "requirements.txt"
    path.write_text("einops\nsix\n")
    yield path
    path.write_text("einops\n")


def layers(tag: str) -> list[str]:
    """Digests of an image's layers."""
    found: list[str] = json.loads(subprocess.check_output(["docker", "image", "inspect", tag], text=True))[0]["RootFS"][
        "Layers"
    ]
    return found


def locked(project: Path) -> Ended:
    """A build by the lock alone."""
    return kit("build", "cpu", "--locked", "--tag", TAG, cwd=project)


def test_a_project_without_a_lock_gets_one_and_is_built_by_it(project: Path) -> None:
    """Readable: packages by version and hash, the base by digest, no time; the next builds do nothing."""
    text = (project / "kit.lock").read_text()

    assert re.search(r"einops:\n +version: [0-9.]+\n +file: einops-.*\.whl\n +sha256: [0-9a-f]{64}", text)
    assert re.search(rf"name: {BASE}\n +digest: sha256:[0-9a-f]{{64}}", text)
    assert not re.search(r"20\d\d-\d\d-\d\d", text)
    assert "up to date" in locked(project).out
    assert kit("lock", cwd=project).out == "cpu: as it was\n"
    assert kit("lock", "--check", cwd=project).out == "kit.lock fits: cpu\n"


def test_what_is_locked_is_what_is_installed(project: Path, lock: Path) -> None:
    """Name and version of every package in the image."""
    name = "d.name.lower().replace('_', '-')"
    code = f"import importlib.metadata as m; print(*({name} + '==' + d.version for d in m.distributions()), sep='\\n')"
    inside = subprocess.check_output(["docker", "run", "--rm", TAG, "python3", "-c", code], text=True)
    written = re.findall(
        r"^      ([a-z0-9-]+):\n        version: (\S+)", lock.read_text().partition("packages:")[2], re.MULTILINE
    )

    assert sorted(inside.split()) == sorted(f"{name}=={version}" for name, version in written)


def test_requirements_that_changed_are_refused_by_name(project: Path, changed: Path) -> None:
    """--locked and --check; a plain build says so and builds what is asked for now."""
    for done in (locked(project), kit("lock", "--check", cwd=project)):
        assert done.code == 1
        assert f"requirements: {changed.name} has changed" in done.err
    plain = kit("build", "cpu", "--print", cwd=project)
    assert plain.code == 0
    assert f"{changed.name} has changed" in plain.err


@pytest.mark.usefixtures("changed")
def test_a_new_requirement_leaves_the_layer_with_torch_alone(project: Path) -> None:
    """One line more: torch is neither fetched nor installed again, its layer is the same, and steps and sizes are told."""
    other = f"other-{TAG}"
    try:
        done = kit("build", "cpu", "--tag", other, cwd=project)
        assert done.code == 0, done.err
        assert "install torch: cached" in done.err
        assert re.search(r"install packages: ([0-9.]+ s|cached)", done.err), (
            "cached: an earlier build asked for the same"
        )
        assert re.search(r"\d+ MB  built in", done.out)
        before, after = (layers(name) for name in (TAG, other))
        assert before[:4] == after[:4], "base, user, Debian packages, torch"
        assert before != after
        script = "import einops, six, torch; print(torch.ones(2).sum().item())"
        assert subprocess.check_output(["docker", "run", "--rm", other, "python3", "-c", script], text=True) == "2.0\n"
    finally:
        subprocess.run(["docker", "rmi", "--force", other], capture_output=True, check=False)


def test_a_hash_or_a_version_edited_by_hand_is_refused_by_name(project: Path, lock: Path) -> None:
    """The file that comes is not the locked one; the package is named, and no image is made."""
    text = lock.read_text()
    sha256 = re.search(r"einops:\n +version: \S+\n +file: \S+\n +sha256: ([0-9a-f]{64})", text)
    assert sha256
    lock.write_text(text.replace(sha256[1], "f" * 64))
    done = locked(project)
    assert done.code == 125
    assert re.search(r"einops: einops-.*\.whl is not the locked file", done.err)
    assert "the whole log" in done.err
    lock.write_text(re.sub(r"(einops:\n +version: )\S+", r"\g<1>0.7.0", text))
    done = locked(project)
    assert done.code == 125
    assert "einops" in done.err


def test_a_base_that_was_tagged_anew_is_refused_by_name(project: Path) -> None:
    """A local base is locked by the engine's ID."""
    before = subprocess.check_output(["docker", "image", "inspect", "--format", "{{.Id}}", BASE], text=True).strip()
    subprocess.run(
        ["docker", "build", "--quiet", "--tag", BASE, "-"],
        input=f"FROM {BASE}\nRUN touch /other\n",
        text=True,
        check=True,
    )
    try:
        done = locked(project)
        assert done.code == 1
        assert re.search(rf"base: {BASE} is sha256:\S+ here, locked is {before}", done.err)
    finally:
        subprocess.check_call(["docker", "tag", before, BASE])


def test_a_wheel_of_the_same_name_is_refused_by_name(project: Path, tmp_path: Path) -> None:
    """Before anything is built."""
    file = re.search(r"file: (einops-\S+\.whl)", (project / "kit.lock").read_text())
    assert file
    wheels = os.environ.get("PIP_FIND_LINKS", "")
    for path in Path(wheels).glob("*.whl") if Path(wheels).is_dir() else ():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / file[1]).write_bytes(b"not what it was")
    done = kit("build", "cpu", "--locked", "--wheels", str(tmp_path), cwd=project)

    assert done.code == 1
    assert f"einops: {file[1]} in --wheels has sha256" in done.err


def test_a_command_without_a_lock_says_what_to_type(tmp_path: Path) -> None:
    """--locked where nothing is locked."""
    refused = kit("build", "cpu", "--locked", cwd=tmp_path)
    assert refused.code == 1
    assert "kit lock cpu" in refused.err
