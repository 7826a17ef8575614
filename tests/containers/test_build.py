"""`kit build`: quick when nothing has changed, clear when it fails, and nothing stays in the image that was lent to the build."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kit import ROOT, command, kit, until

BUILD = [str(ROOT / "ci" / "build-cpu")]
"""`kit build cpu` with what this machine needs (base, CA, wheels); further options are passed on."""
IMAGE = "accelkit-cpu:latest"


@pytest.fixture
def tag() -> Iterator[str]:
    """A tag of our own, removed afterwards."""
    name = f"accelkit-test-{os.getpid()}:latest"
    yield name
    subprocess.run(["docker", "rmi", "--force", name], capture_output=True, check=False)


def inside(*argv: str) -> str:
    """What a command prints in a container of the image, started without any options of kit's."""
    return subprocess.check_output(["docker", "run", "--rm", IMAGE, *argv], text=True).strip()


def test_a_second_build_does_nothing(tmp_path: Path) -> None:
    """The same inputs: found by their digest, in less than two seconds."""
    done = command(BUILD, cwd=tmp_path)
    found = re.search(r"up to date \(([0-9.]+) s\)", done.out)

    assert found, done.out + done.err
    assert float(found[1]) < 2.0


def test_an_image_that_is_replaced_stays_for_the_runs_that_used_it(tmp_path: Path, tag: str) -> None:
    """Another project's build under the same tag: the image before keeps a tag, its run is reproduced, its build needs no second one."""
    (tmp_path / "more.txt").write_text("six==1.16.0\n")
    (tmp_path / "s.py").write_text("import os\nopen(os.environ['KIT_OUTPUT_DIR'] + '/o', 'w').write('x')")
    first = command([*BUILD, "--tag", tag], cwd=tmp_path)
    ran = kit("run", "--image", tag, "s.py", cwd=tmp_path)
    second = command([*BUILD, "--tag", tag, "--requirements", str(tmp_path / "more.txt")], cwd=tmp_path)
    kept = re.search(rf"as ({tag.partition(':')[0]}:[0-9a-f]{{12}}) ", second.err)
    assert kept, second.err
    try:
        refused = kit("reproduce", "last", cwd=tmp_path)
        allowed = kit("reproduce", "last", "--verify", "--allow", "image", cwd=tmp_path)
        back = command([*BUILD, "--tag", tag], cwd=tmp_path)
        other = re.search(r"as (\S+:[0-9a-f]{12}) ", back.err)
        agreed = kit("reproduce", "last", "--verify", cwd=tmp_path)
    finally:
        names = [kept[1], *([other[1]] if other else [])]
        subprocess.run(["docker", "rmi", "--force", *names], capture_output=True, check=False)

    assert [done.code for done in (first, ran, second, allowed, back, agreed)] == [0] * 6, allowed.err + back.err
    assert refused.code == 1
    assert "the engine still has the recorded image" in refused.err
    assert "up to date" in back.out, "its image was found and got its tag again"
    assert other, back.err


def test_a_build_that_fails_leaves_no_other_tag(tmp_path: Path, tag: str) -> None:
    """The image is held while something is built; nothing is replaced, so nothing more is there afterwards."""
    subprocess.run(["docker", "tag", IMAGE, tag], check=True)
    (tmp_path / "bad.txt").write_text("no-such-package-of-anybody==1.2.3\n")
    done = command([*BUILD, "--requirements", str(tmp_path / "bad.txt"), "--tag", tag, "--no-cache"], cwd=tmp_path)
    listed = ["docker", "images", "--format", "{{.Tag}}", tag.partition(":")[0]]

    assert done.code == 125
    assert subprocess.check_output(listed, text=True).split() == ["latest"]


def test_packages_that_do_not_resolve_are_named_before_anything_is_built(tmp_path: Path, tag: str) -> None:
    """A package that does not exist: uv's own words; no image, no half of one."""
    (tmp_path / "bad.txt").write_text("no-such-package-of-anybody==1.2.3\n")
    done = command([*BUILD, "--requirements", str(tmp_path / "bad.txt"), "--tag", tag], cwd=tmp_path)

    assert done.code == 125
    assert "image cpu: its packages do not resolve" in done.err
    assert "no-such-package-of-anybody" in done.err
    assert "Traceback" not in done.err
    assert subprocess.run(["docker", "image", "inspect", tag], capture_output=True, check=False).returncode


def test_a_requirements_file_that_points_to_others_is_refused(tmp_path: Path) -> None:
    """They would be looked for in a place where they are not: file, line and the way out are named, before anything is built."""
    (tmp_path / "more.txt").write_text("numpy\n-r other.txt\n")
    done = kit("build", "cpu", "--requirements", "more.txt", cwd=tmp_path)

    assert done.code == 2
    assert "more.txt:2: -r other.txt" in done.err
    assert "--requirements" in done.err


def test_nothing_of_the_build_stays_in_the_image() -> None:
    """No CA, wheels, proxy or index in layers' commands, environment or files; packages come with byte code."""
    history = subprocess.check_output(
        ["docker", "history", "--no-trunc", "--format", "{{.CreatedBy}}", IMAGE], text=True
    )
    config = json.loads(subprocess.check_output(["docker", "image", "inspect", IMAGE], text=True))[0]["Config"]
    lent = [
        os.environ.get(name)
        for name in ("SSL_CERT_FILE", "PIP_FIND_LINKS", "HTTPS_PROXY", "HTTP_PROXY", "PIP_INDEX_URL")
    ]
    variables = {entry.partition("=")[0] for entry in config["Env"]}

    assert not [text for text in lent if text and (text in history or text in json.dumps(config))]
    assert not variables & {"SSL_CERT_FILE", "PIP_CERT", "PIP_INDEX_URL", "HTTPS_PROXY", "HTTP_PROXY", "https_proxy"}
    there = inside(
        "sh",
        "-c",
        "ls -d /run/secrets/ca /wheels /wheelhouse/* /debs/* /shared/* /root/.cache/pip /tmp/* 2>/dev/null || true",
    )
    assert there == ""
    assert inside("sh", "-c", "ls -d /opt/venv/lib/python3*/site-packages/torch/__pycache__/__init__*.pyc") != ""


def test_the_image_runs_as_an_unprivileged_user() -> None:
    """Also where somebody starts it without kit; that user has a home to write to."""
    assert inside("id", "-u") == "1000"
    assert inside("sh", "-c", "touch ~/x && echo ~").startswith("/home/")


def test_the_plan_of_a_build_is_printed_without_one(tmp_path: Path, tag: str) -> None:
    """--print: the command, the Dockerfile's place, the digest; no secret's content."""
    done = command(
        [*BUILD, "--print", "--index-url", "https://someone:hidden@index.invalid/simple", "--tag", tag], cwd=tmp_path
    )

    assert done.code == 0, done.err
    assert "docker buildx build" in done.out
    assert "sha256:" in done.out
    assert "hidden" not in done.out
    assert subprocess.run(["docker", "image", "inspect", tag], capture_output=True, check=False).returncode


def test_an_interrupted_build_ends_at_once_and_leaves_the_image(tmp_path: Path, tag: str) -> None:
    """Ctrl-C while packages are installed: exit code 130, no image, no process of the build."""
    process = subprocess.Popen(
        [*BUILD, "--tag", tag, "--no-cache"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        seen = iter(process.stderr.readline, "")
        assert any("fetch torch" in line for line in seen), "the build began"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
    finally:
        process.kill()

    assert subprocess.run(["docker", "image", "inspect", tag], capture_output=True, check=False).returncode
    until(
        lambda: tag not in subprocess.check_output(["ps", "-eo", "args"], text=True),
        "the build's processes are gone",
        10,
    )


def test_what_is_up_to_date_is_pushed_too(tmp_path: Path, tag: str) -> None:
    """--push is about the registry, whatever the engine has: one that does not answer is a failure, not "up to date"."""
    nowhere = f"localhost:1/{tag}"
    subprocess.run(["docker", "tag", IMAGE, nowhere], check=True)
    try:
        done = command([*BUILD, "--tag", nowhere, "--push"], cwd=tmp_path)
    finally:
        subprocess.run(["docker", "rmi", nowhere], capture_output=True, check=False)

    assert done.code == 125
    assert "docker push: " in done.err


def test_a_debian_package_that_is_named_twice_is_one(tmp_path: Path, tag: str) -> None:
    """The same digest: nothing else is built."""
    plan = [*BUILD, "--print", "--tag", tag, "--apt", "tree"]
    once, twice = command(plan, cwd=tmp_path), command([*plan, "--apt", "tree"], cwd=tmp_path)

    assert once.code == 0, once.err
    assert once.out == twice.out
