"""How `kit` itself ends: with a message and a code of its own, never with a traceback and the code of a script."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.kit import KIT, ROOT, kit


def test_a_folder_that_is_gone_is_said_to_be_so(tmp_path: Path) -> None:
    """A terminal stays in a folder that somebody removes."""
    (tmp_path / "gone").mkdir()
    code = f"import os; os.chdir('gone'); os.rmdir('../gone'); {KIT[2]}"
    done = subprocess.run(
        [sys.executable, "-c", code, "runs", "list"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "kit: error: the current folder is not there any more")


def test_a_command_that_is_not_there_is_told_with_the_nearest(tmp_path: Path) -> None:
    """One line, exit code 2; nothing is suggested where nothing is near."""
    near, far = kit("buld", "cpu", cwd=tmp_path), kit("xyzzy", cwd=tmp_path)

    assert (near.code, far.code) == (2, 2)
    assert "No such command 'buld'. Did you mean 'build'?" in near.err
    assert "Did you mean" not in far.err


def test_what_nobody_has_foreseen_is_kits_failure(tmp_path: Path) -> None:
    """One line and 125; the traceback is for -vv."""
    code = f"from accelkit.host.runs.store import Store; Store.entries = lambda self: 1 / 0; {KIT[2]}"
    ended = [
        subprocess.run(
            [sys.executable, "-c", code, *more, "runs", "list"], cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
        )
        for more in ([], ["-vv"])
    ]  # fmt: skip

    assert [done.returncode for done in ended] == [125, 125]
    assert ended[0].stderr.startswith("kit: error: ZeroDivisionError: division by zero\n")
    assert "Traceback" not in ended[0].stderr
    assert "Traceback" in ended[1].stderr


def test_a_user_without_a_home_is_told_what_to_set(tmp_path: Path) -> None:
    """A UID that has no entry, and no HOME, as containers of pipelines have it."""
    before = f"import os, pwd; os.environ.pop('HOME', None); pwd.getpwuid = {{}}.__getitem__; {KIT[2]}"
    env = {n: v for n, v in os.environ.items() if not n.startswith("XDG_")} | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", before, "config", "show"], cwd="/", env=env, capture_output=True, text=True, check=False
    )

    assert (done.returncode, "you have no home folder" in done.stderr) == (125, True), done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_while_kit_is_imported_is_quiet(tmp_path: Path) -> None:
    """Its code is 130, and nothing is said."""
    code = "import os, signal, sys\nfrom accelkit.host.cli.console import console\n"
    code += "class Meets:\n    def find_spec(self, name, *_):\n"
    code += "        if name == 'accelkit.host.cli.main': os.kill(os.getpid(), signal.SIGINT)\n"
    code += "sys.meta_path.insert(0, Meets())\nconsole()\n"
    done = subprocess.run(
        [sys.executable, "-c", code, "runs", "list"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_a_port_of_roots_is_not_said_to_be_in_use(tmp_path: Path) -> None:
    """Who may not bind it is told so."""
    code = "import os; os.setuid(54321)\nfrom accelkit.host.launch.network import PortReservation\nPortReservation(80)"
    limit = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text()
    if int(limit) <= 80:
        pytest.skip("this machine gives such ports to everybody")
    done = subprocess.run(
        [sys.executable, "-c", f"import accelkit.host.launch.network\n{code}"], cwd=tmp_path.anchor, capture_output=True,
        text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip

    assert "--port 80: only root may use it" in done.stderr
