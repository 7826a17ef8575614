"""An engine that others use too, that dies under a run, and callers who are not root."""

import contextlib
import os
import select
import shutil
import socket
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kit import ROOT, kit, runs, start, until

SOCKET = "/var/run/docker.sock"
SLEEPS = "import os, pathlib, threading; pathlib.Path('up' + os.environ['RANK']).touch(); threading.Event().wait()"
SUM = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
print(int(total))
"""


class Engine:
    """The engine behind a socket of our own, which can be cut."""

    def __init__(self, path: Path) -> None:
        self.url = f"unix://{path}"
        self._pairs: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        threading.Thread(target=self._serve, daemon=True).start()

    def cut(self) -> None:
        """As if the engine had died: no new connection, and the old ones are closed."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in self._pairs:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(SOCKET)
                self._pairs += [near, far]
                threading.Thread(target=_relay, args=(near, far), daemon=True).start()


def _relay(near: socket.socket, far: socket.socket) -> None:
    others = {near: far, far: near}
    with contextlib.suppress(OSError):
        while others:
            for end in select.select(list(others), [], [])[0]:
                data = end.recv(1 << 16)
                if data:
                    others[end].sendall(data)
                else:
                    others.pop(end).shutdown(socket.SHUT_WR)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """Cut at the end at the latest."""
    made = Engine(tmp_path / "engine.sock")
    yield made
    made.cut()


def left(run_id: str) -> str:
    """Containers and networks of a run."""
    label = f"label=accelkit.run={run_id}"
    return subprocess.check_output(["docker", "ps", "-aq", "--filter", label], text=True) + subprocess.check_output(
        ["docker", "network", "ls", "-q", "--filter", label], text=True
    )


def test_an_engine_that_dies_mid_run_is_one_message_and_a_run_that_can_be_stopped(
    tmp_path: Path, engine: Engine
) -> None:
    """Kit says that the engine is lost and exits with 125; when it is back, `kit runs stop` removes what it left."""
    (tmp_path / "s.py").write_text(SLEEPS)
    process = start("run", "--image", "cpu", "--nodes", "2", "s.py", cwd=tmp_path, env={"DOCKER_HOST": engine.url})
    until(lambda: all((tmp_path / f"up{rank}").exists() for rank in (0, 1)), "both nodes are up")
    engine.cut()
    _, err = process.communicate(timeout=60)
    run_id = runs(tmp_path)[0]["run_id"]

    assert process.returncode == 125
    assert "engine" in err
    assert "Traceback" not in err
    assert left(run_id) != ""
    assert kit("runs", "clean", cwd=tmp_path).code == 0
    assert left(run_id) == ""


def test_two_runs_at_once_do_not_meet(tmp_path: Path) -> None:
    """The same script from two folders, two containers each, at the same time: each sums its own ranks, and nothing is left."""
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
        (folder / "sum.py").write_text(SUM)
    started = [start("run", "--image", "cpu", "--nodes", "2", "sum.py", cwd=folder) for folder in folders]
    ended = [process.communicate(timeout=200) for process in started]

    for process, folder, (out, err) in zip(started, folders, ended, strict=True):
        assert process.returncode == 0, err
        assert sorted(out.splitlines()) == ["[node0 rank0] 3", "[node1 rank1] 3"]
        assert left(runs(folder)[0]["run_id"]) == ""


def test_a_caller_who_is_not_root_owns_what_is_written(tmp_path: Path) -> None:
    """A user in the engine's group, with an interpreter that is not root's: ranks run as that user, and so do outputs and record."""
    python = "/usr/bin/python3"
    version = f"import sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
    if (
        os.getuid() != 0
        or not shutil.which("setpriv")
        or subprocess.run([python, "-c", version], check=False).returncode
    ):
        pytest.skip("needs root to become somebody else, setpriv, and a system Python of this very version")
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    (work / "s.py").write_text("import os; open('made', 'w').close(); print(os.getuid())")
    for path in (work, work / "s.py"):
        os.chown(path, 4321, 4321)
    packages = shutil.copytree(ROOT / "accelkit", tmp_path / "lib" / "accelkit").parent
    for data in ("images", "compose"):
        shutil.copytree(ROOT / data, packages / data)
    for name in ("typer", "docker", "pydantic", "pydantic_core", "annotated_types", "typing_inspection", "yaml", "requests",
                 "urllib3", "idna", "certifi", "charset_normalizer", "rich", "shellingham", "typing_extensions.py", "annotated_doc",
                 "markdown_it", "mdurl", "pygments"):  # fmt: skip
        source = Path(sysconfig.get_path("purelib")) / name
        if source.is_dir():
            shutil.copytree(source, packages / name)
        elif source.is_file():
            shutil.copy(source, packages / name)
    group = os.stat(SOCKET).st_gid
    done = subprocess.run(
        ["setpriv", "--reuid=4321", "--regid=4321", f"--groups={group}", python, "-m", "accelkit.host.cli.main",
         "run", "--image", "cpu", "s.py"],
        cwd=work, env={"PATH": os.environ["PATH"], "HOME": str(work), "PYTHONPATH": str(packages)},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip

    assert done.stdout == "[node0 rank0] 4321\n", done.stderr
    assert done.returncode == 0
    assert {path.stat().st_uid for path in (work / "made", *(work / ".accelkit").rglob("*"))} == {4321}
