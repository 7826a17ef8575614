"""Whole runs in containers: the digits bit for bit, failures named, nothing left, outputs the caller's."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.kit import ROOT, Ended, kit, runs, start, until

DIGITS = ROOT / "examples" / "digits.py"
SHORT = ["--epochs", "2"]
NODES = ["--nodes", "2", "--procs-per-node", "1"]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A working folder with the digits in it."""
    (tmp_path / "digits.py").write_text(DIGITS.read_text())
    return tmp_path


def left(cwd: Path) -> str:
    """Containers and networks of the runs of a folder (others may use the engine too)."""
    found = ""
    for folder in (cwd / ".accelkit" / "runs").iterdir():
        label = f"label=accelkit.run={folder.name}"
        found += subprocess.check_output(["docker", "ps", "-aq", "--filter", label], text=True)
        found += subprocess.check_output(["docker", "network", "ls", "-q", "--filter", label], text=True)
    return found


def last_line(done: Ended) -> str:
    """The last line of rank 0, without its prefix."""
    assert done.code == 0, done.err
    return done.out.splitlines()[-1].rpartition("] ")[2]


def test_local_one_container_and_two_are_the_same_bits(work: Path) -> None:
    """Two ranks compute the same wherever they run; every test image counts once; nothing is left."""
    two = ["--procs-per-node", "2", "--deterministic", "digits.py", *SHORT]
    local = last_line(kit("run", "--on", "local", *two, cwd=work))
    one = last_line(kit("run", "--image", "cpu", *two, cwd=work))
    nodes = last_line(
        kit(
            "run",
            "--image",
            "cpu",
            "--nodes",
            "2",
            "--procs-per-node",
            "1",
            "--deterministic",
            "digits.py",
            *SHORT,
            cwd=work,
        )
    )

    assert local == one == nodes
    assert "of 360)" in one
    assert left(work) == ""


FAILING = """
import os, sys, threading, signal
if os.environ["RANK"] == "1":
    {}
threading.Event().wait()
"""


@pytest.mark.parametrize(
    "topology", [["--procs-per-node", "2"], ["--nodes", "2", "--procs-per-node", "1"]], ids=["one", "two"]
)
@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        ("raise ValueError('boom')", 1, "raised ValueError: boom"),
        ("sys.exit(7)", 7, "exited with code 7"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "was killed by SIGKILL"),
        ("x = [bytearray(1 << 20) for _ in range(4000)]", 137, "ran out of memory"),
    ],
    ids=["raises", "exits", "killed", "oom"],
)
def test_a_failing_rank_is_named_and_its_code_passes_through(
    tmp_path: Path, topology: list[str], how: str, code: int, words: str
) -> None:
    """Within seconds of its death, with the others stopped and nothing left; memory is told from a plain kill."""
    (tmp_path / "f.py").write_text(FAILING.format(how))
    done = kit("run", "--image", "cpu", "--memory", "256m", *topology, "f.py", cwd=tmp_path)
    record = json.loads(kit("runs", "show", "last", "--json", cwd=tmp_path).out)
    ranks = {r["rank"]: r for r in record["outcome"]["ranks"]}

    assert done.code == code
    assert f"rank 1 on node{len(topology) // 2 - 1} {words}" in done.err
    assert record["outcome"]["ended_at"] - ranks[1]["ended_at"] < 5
    assert left(tmp_path) == ""


def test_a_container_that_is_killed_from_outside_is_named(tmp_path: Path) -> None:
    """The node, not a rank; the other one is stopped."""
    (tmp_path / "s.py").write_text(
        "import os, pathlib, threading; pathlib.Path('up' + os.environ['RANK']).touch(); threading.Event().wait()"
    )
    process = start("run", "--image", "cpu", "--nodes", "2", "s.py", cwd=tmp_path)
    until(lambda: all((tmp_path / f"up{r}").exists() for r in (0, 1)), "both nodes are up")
    run_id = runs(tmp_path)[0]["run_id"]
    subprocess.run(["docker", "kill", f"accelkit-{run_id}-node1"], check=True, capture_output=True)
    _, err = process.communicate(timeout=30)

    assert process.returncode == 137
    assert "node1 was killed (SIGKILL) from outside" in err
    assert left(tmp_path) == ""


@pytest.mark.parametrize("phase", ["start", "training"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_nothing(tmp_path: Path, phase: str, number: int, code: int) -> None:
    """While containers start, and while they work."""
    (tmp_path / "s.py").write_text(
        "import os, pathlib, threading; pathlib.Path('up' + os.environ['RANK']).touch(); threading.Event().wait()"
    )
    process = start("run", "--image", "cpu", "--nodes", "2", "s.py", cwd=tmp_path)
    if phase == "training":
        until(lambda: all((tmp_path / f"up{r}").exists() for r in (0, 1)), "both nodes are up")
    else:
        until(lambda: bool(list(tmp_path.glob(".accelkit/runs/*/compose.yaml"))), "compose has its file")
    process.send_signal(number)
    process.communicate(timeout=20)

    assert process.returncode == code
    assert left(tmp_path) == ""


def test_a_run_whose_kit_was_killed_can_be_stopped(tmp_path: Path) -> None:
    """It is listed as orphaned; stop removes containers and network."""
    (tmp_path / "s.py").write_text("import pathlib, threading; pathlib.Path('up').touch(); threading.Event().wait()")
    process = start("run", "--image", "cpu", "--nodes", "2", "s.py", cwd=tmp_path)
    until((tmp_path / "up").exists, "a node is up")
    process.kill()
    process.communicate()

    assert runs(tmp_path)[0]["state"] == "orphaned"
    assert kit("runs", "stop", "last", cwd=tmp_path).code == 0
    assert left(tmp_path) == ""


def test_the_compose_file_runs_with_plain_docker_compose(tmp_path: Path) -> None:
    """What kit ran can be run without kit."""
    (tmp_path / "s.py").write_text("import os; print('rank', os.environ['RANK'])")
    kit("run", "--image", "cpu", "--nodes", "2", "s.py", cwd=tmp_path)
    folder = tmp_path / ".accelkit" / "runs" / runs(tmp_path)[0]["run_id"]
    up = subprocess.run(
        ["docker", "compose", "-f", "compose.yaml", "up"], cwd=folder, capture_output=True, text=True, check=False
    )
    subprocess.run(["docker", "compose", "-f", "compose.yaml", "down"], cwd=folder, capture_output=True, check=True)

    assert "[node1 rank1] rank 1" in up.stdout
    assert left(tmp_path) == ""


def test_containers_are_confined_and_outputs_are_the_callers(tmp_path: Path) -> None:
    """The caller's UID, no capabilities, no new privileges, a read-only runtime, shared memory, limits."""
    (tmp_path / "s.py").write_text(
        "import os, json\nstatus = open('/proc/self/status').read()\nopen('made', 'w').write('x')\n"
        "try:\n    open('/accelkit/runtime/x', 'w'); ro = False\nexcept OSError:\n    ro = True\n"
        "s = os.statvfs('/dev/shm')\n"
        "print(json.dumps({'uid': os.getuid(), 'caps': [l for l in status.splitlines() if l.startswith(('CapEff', 'NoNewPrivs'))], "
        "'ro': ro, 'shm': s.f_blocks * s.f_frsize, 'home': os.access(os.environ['HOME'], os.W_OK), 'aws': os.environ.get('AWS_X'), "
        "'no': os.environ.get('NOT_ASKED')}))\n"
    )
    env = {"AWS_X": "1", "NOT_ASKED": "1"}
    done = kit("run", "--image", "cpu", "--shm-size", "128m", "--env", "AWS_*", "s.py", cwd=tmp_path, env=env)
    found = json.loads(done.out.partition("] ")[2])

    assert found["uid"] == os.getuid()
    assert {line.split()[1] for line in found["caps"]} == {"0000000000000000", "1"}
    assert (found["ro"], found["home"], found["shm"], found["aws"], found["no"]) == (True, True, 128 << 20, "1", None)
    assert (tmp_path / "made").stat().st_uid == os.getuid()


def test_a_secret_is_a_file_that_docker_inspect_does_not_show(tmp_path: Path) -> None:
    """The script reads it; no file of the run holds it."""
    (tmp_path / "s.py").write_text("print(len(open('/run/secrets/TOKEN').read()))")
    done = kit("run", "--image", "cpu", "--secret", "TOKEN", "s.py", cwd=tmp_path, env={"TOKEN": "hidden-hidden-hid"})

    assert done.out == "[node0 rank0] 17\n", done.err
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and b"hidden-hidden-hid" in p.read_bytes()]


@pytest.mark.parametrize(
    ("words", "env", "message"),
    [
        (["--image", "cpu", "s.py"], {"DOCKER_HOST": "unix:///nowhere.sock"}, "no Docker engine"),
        (["--image", "nope", "s.py"], {}, "image 'nope'"),
        (["--image", "cpu", "missing.py"], {}, "missing.py: no such script"),
        (["--image", "cpu", "/etc/hostname"], {}, "outside every mount"),
    ],
)
def test_what_cannot_start_says_so_once(tmp_path: Path, words: list[str], env: dict[str, str], message: str) -> None:
    """One clear message, a hint, and nothing half-done."""
    (tmp_path / "s.py").write_text("")
    done = kit("run", *words, cwd=tmp_path, env=env)

    assert done.code in (2, 125)
    assert message in done.err
    assert "Traceback" not in done.err
    assert not list(tmp_path.glob(".accelkit/runs/*"))


def test_a_two_container_run_reproduces_bitwise_from_a_tree_that_has_changed(work: Path) -> None:
    """The recorded code runs, dirty as it was; what changed since is named; a changed file of the user's stays."""
    git = ["git", "-C", str(work), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "digits.py"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    (work / "digits.py").write_text(DIGITS.read_text() + "# dirty\n")
    first = kit(
        "run",
        "--image",
        "cpu",
        "--nodes",
        "2",
        "--procs-per-node",
        "1",
        "--deterministic",
        "digits.py",
        *SHORT,
        cwd=work,
    )
    (work / "digits.py").write_text("raise SystemExit('not this')\n")
    again = kit("reproduce", "last", "--verify", cwd=work)

    assert first.code == 0, first.err
    assert again.code == 0, again.err
    assert "bitwise" in again.out
    assert "digits.py" in again.err
    assert (work / "digits.py").read_text() == "raise SystemExit('not this')\n"
    assert left(work) == ""


def test_a_changed_image_is_refused_by_name(tmp_path: Path) -> None:
    """The reference means another image today: named, and refused without --allow image."""
    (tmp_path / "s.py").write_text("print('x')")
    tag = ["docker", "tag", "accelkit-cpu:latest", "accelkit-moving:latest"]
    subprocess.run(tag, check=True)
    try:
        assert kit("run", "--image", "accelkit-moving:latest", "s.py", cwd=tmp_path).code == 0
        subprocess.run(["docker", "tag", "accelkit-base:bookworm", "accelkit-moving:latest"], check=True)
        done = kit("reproduce", "last", cwd=tmp_path)
    finally:
        subprocess.run(["docker", "rmi", "accelkit-moving:latest"], check=True, capture_output=True)

    assert done.code == 1
    assert "accelkit-moving:latest" in done.err
    assert "--allow image" in done.err


def test_another_user_owns_what_the_ranks_write(tmp_path: Path) -> None:
    """--user UID:GID: outputs are that user's, who has a name and a home in the container."""
    tmp_path.chmod(0o777)
    script = "import os, pwd\nopen('made', 'w').write('x')\nopen(os.environ['KIT_OUTPUT_DIR'] + '/o', 'w').write('x')\n"
    (tmp_path / "s.py").write_text(
        script + "print(os.getuid(), pwd.getpwuid(os.getuid()).pw_dir, os.access(os.path.expanduser('~'), os.W_OK))"
    )
    done = kit("run", "--image", "cpu", "--user", "1234:1234", "s.py", cwd=tmp_path)

    assert done.out == "[node0 rank0] 1234 /accelkit/home True\n", done.err
    assert (tmp_path / "made").stat().st_uid == 1234
