"""boot: starts the ranks of a node, relays them, ends them together. Real processes, no torch."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from accelkit.contract import codec, names
from accelkit.contract.results import NodeReport, RankResult
from accelkit.contract.spec import LaunchSpec, Program, RuntimeSettings
from tests.support.kit import until

ROOT = Path(__file__).resolve().parents[2]
BOOT = [sys.executable, "-c", "from accelkit.runtime.boot import main; main()"]


class World:
    """One node's folder and the process that runs it."""

    def __init__(self, folder: Path, script: str, ranks: int = 2, **more: Any) -> None:
        """`script`: the text of what every rank runs; `more`: fields of the spec."""
        self.folder = folder
        (folder / "logs").mkdir()
        (folder / "script.py").write_text(textwrap.dedent(script))
        program = more.pop("program", Program(kind="script", target="script.py", args=("--flag",)))
        spec = LaunchSpec(
            run_id="r", nodes=more.pop("nodes", 1), procs_per_node=ranks, master_addr="127.0.0.1", master_port=29500, program=program,
            workdir=str(folder), exchange_dir=str(folder), output_dir=str(folder), ranks_on_machine=ranks,
            failure_grace=0.3, stop_grace=1.0, **more,
        )  # fmt: skip
        codec.write(folder / names.SPEC_FILE, spec)

    def start(self, node: int = 0) -> "subprocess.Popen[str]":
        """boot, left running."""
        return subprocess.Popen(
            [*BOOT, str(self.folder / names.SPEC_FILE), "--node", str(node)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True,
        )  # fmt: skip

    def run(self) -> tuple[int, str, str]:
        """Exit code, standard output and error of a whole run."""
        with self.start() as process:
            out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def result(self, rank: int) -> RankResult:
        """What boot wrote about a rank."""
        return codec.read(RankResult, self.folder / names.rank_file(rank))


LAST = "import os, sys, threading, signal\nlast = os.environ['RANK'] == '1'\n"


def test_every_rank_gets_its_place_its_arguments_and_prefixed_lines(tmp_path: Path) -> None:
    """Ranks, threads and arguments are right; lines are prefixed, logs are not."""
    world = World(tmp_path, "import os, sys; print(os.environ['RANK'], os.environ['WORLD_SIZE'], os.environ['OMP_NUM_THREADS'], sys.argv)",
                  threads=3)  # fmt: skip
    code, out, _ = world.run()

    assert code == 0
    assert sorted(out.splitlines()) == [f"[node0 rank{r}] {r} 2 3 ['script.py', '--flag']" for r in (0, 1)]
    assert (tmp_path / names.rank_log_file(1)).read_text() == "1 2 3 ['script.py', '--flag']\n"
    report = codec.read(NodeReport, tmp_path / names.node_file(0))
    assert (report.state, report.exit_code, report.threads) == ("ended", 0, 3)


@pytest.mark.parametrize(
    ("how", "code", "cause"),
    [
        ("raise ValueError('boom')", 1, "error"),
        ("sys.exit(7)", 7, "exit"),
        ("sys.exit('words')", 1, "error"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "signal"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "signal"),
        ("os._exit(3)", 3, "exit"),
    ],
)
def test_the_first_failure_is_named_and_ends_the_others(tmp_path: Path, how: str, code: int, cause: str) -> None:
    """Its exit code is boot's; the rank that would sleep for ever is stopped, as a consequence."""
    world = World(tmp_path, f"{LAST}if last: {how}\nthreading.Event().wait()\n")
    started = time.monotonic()
    found, _, _ = world.run()

    assert found == code
    assert time.monotonic() - started < 20
    assert (world.result(1).cause, world.result(1).exit_code) == (cause, code)
    assert world.result(0).cause == "stopped"


def test_an_exception_is_told_with_its_place(tmp_path: Path) -> None:
    """Type, message, file and line of the user's own code; the traceback has no frame of kit's."""
    script = "import json\n\ndef inner():\n    json.loads('{')\n\ninner()\n"
    world = World(tmp_path, script, ranks=1)
    code, _, err = world.run()
    error = world.result(0).error

    assert code == 1
    assert error is not None
    assert (error.type, error.file, error.line) == ("json.decoder.JSONDecodeError", str(tmp_path / "script.py"), 4)
    assert "rank_main" not in error.traceback
    assert "[node0 rank0] Traceback (most recent call last):" in err


def test_a_rank_that_hangs_after_its_exception_shows_where_and_ends(tmp_path: Path) -> None:
    """A thread that never ends does not keep a failed rank; its error is the one that is told."""
    script = """
    import sys, threading, time
    next(m for n, m in sys.modules.items() if n.endswith("rank_main")).EXIT_GRACE = 0.5
    threading.Thread(target=time.sleep, args=(600,)).start()
    raise ValueError("boom")
    """
    world = World(tmp_path, textwrap.dedent(script), ranks=1)
    code, _, err = world.run()

    assert code == 1
    assert (world.result(0).cause, "_shutdown" in err) == ("error", True)


@pytest.mark.slow
def test_a_rank_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    """Waiting has a limit."""
    world = World(
        tmp_path,
        f"{LAST}signal.signal(signal.SIGTERM, signal.SIG_IGN)\nif last: sys.exit(5)\nthreading.Event().wait()\n",
    )
    code, _, _ = world.run()

    assert code == 5
    assert (world.result(0).cause, world.result(0).signal) == ("stopped", "SIGKILL")


def test_nothing_of_a_rank_outlives_boot(tmp_path: Path) -> None:
    """Grandchildren, also those that left the rank's session, are gone when boot is; open pipes do not hold it up."""
    script = f"""
    {LAST.replace(chr(10), "; ")}import subprocess
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    open("pid" + os.environ["RANK"], "w").write(str(child.pid))
    """
    World(tmp_path, script).run()

    for rank in (0, 1):
        pid = int((tmp_path / f"pid{rank}").read_text())
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_ranks_die_with_a_boot_that_is_killed(tmp_path: Path) -> None:
    """No orphan goes on computing."""
    world = World(tmp_path, "import os, threading\nprint(os.getpid(), flush=True)\nthreading.Event().wait()\n", ranks=1)
    with world.start() as boot:
        assert boot.stdout is not None
        pid = int(boot.stdout.readline().split()[-1])
        boot.kill()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_signal_stops_the_node(tmp_path: Path, number: int, code: int) -> None:
    """Every rank gets SIGTERM and is recorded as stopped."""
    world = World(tmp_path, "import threading\nprint('up', flush=True)\nthreading.Event().wait()\n", ranks=1)
    with world.start() as boot:
        assert boot.stdout is not None
        boot.stdout.readline()
        boot.send_signal(number)
        boot.communicate(timeout=30)

    assert boot.returncode == code
    assert world.result(0).cause == "stopped"


def test_output_of_any_kind_arrives(tmp_path: Path) -> None:
    """Floods, lines without an end, bytes that are no text, progress bars: whole, in order, a line at a time."""
    script = """
    import sys
    for i in range(20000): print("x" * 50, i)
    sys.stdout.flush()
    sys.stdout.buffer.write(b"\\xff\\xfe ok\\n")
    print("10%\\r20%\\r30%")
    sys.stdout.write("no end")
    """
    world = World(tmp_path, script, ranks=1)
    with world.start() as boot:
        assert boot.stdout is not None
        data = boot.stdout.buffer.read()
    lines = data.split(b"\n")

    assert [line.rpartition(b" ")[2] for line in lines[:20000]] == [str(i).encode() for i in range(20000)]
    # A progress bar may be shown on its way, too, where the machine is slow: each time from the line's start, the end last.
    rest = [line.rpartition(b"\r")[2] for line in lines[20000:]]
    assert rest == [b"[node0 rank0] \xff\xfe ok", b"[node0 rank0] 30%", b"[node0 rank0] no end", b""]


def test_the_script_is_the_main_module(tmp_path: Path) -> None:
    """Its classes pickle, and spawned processes find it."""
    script = """
    import multiprocessing, pickle
    class Thing:
        pass
    def work(q): q.put(type(Thing()).__module__)
    if __name__ == "__main__":
        pickle.loads(pickle.dumps(Thing()))
        context = multiprocessing.get_context("spawn")
        queue = context.Queue()
        process = context.Process(target=work, args=(queue,))
        process.start()
        print(queue.get(timeout=30), process.join(), __file__)
    """
    code, out, err = World(tmp_path, script, ranks=1).run()

    assert (code, err) == (0, "")
    assert out == f"[node0 rank0] __mp_main__ None {tmp_path}/script.py\n"


def test_a_module_runs_as_with_python_m(tmp_path: Path) -> None:
    """-m: the working folder is on the path."""
    world = World(tmp_path, "", ranks=1, program=Program(kind="module", target="mod", args=("a",)))
    (tmp_path / "mod.py").write_text("import sys; print(__name__, sys.argv[1:])")
    _, out, _ = world.run()

    assert out == "[node0 rank0] __main__ ['a']\n"


def test_deterministic_runs_have_fixed_hash_seeds(tmp_path: Path) -> None:
    """PYTHONHASHSEED is set before the interpreter starts."""
    world = World(
        tmp_path,
        "import os; print(hash('a'), os.environ['PYTHONHASHSEED'])",
        settings=RuntimeSettings(deterministic=True, seed=4),
    )
    _, out, _ = world.run()

    assert len({line.split("] ")[1] for line in out.splitlines()}) == 1
    assert out.rstrip().endswith(" 4")


def test_the_users_variables_win_but_for_ranks(tmp_path: Path) -> None:
    """--env overrules kit's thread counts, never the rendezvous."""
    world = World(
        tmp_path,
        "import os, json; print(json.dumps(dict(os.environ)))",
        ranks=1,
        env={"OMP_NUM_THREADS": "9", "RANK": "7"},
    )
    _, out, _ = world.run()
    found = json.loads(out.split("] ", 1)[1])

    assert (found["OMP_NUM_THREADS"], found["RANK"]) == ("9", "0")


MEET = """
import os, socket
rank = int(os.environ["RANK"])
address = ("127.0.0.1", int(os.environ["SHOWN_PORT"]))
if rank == 0:
    with socket.create_server(address) as server:
        server.settimeout(30)
        open("listens", "w").close()
        print("met", server.accept()[0].recv(1).decode())
else:
    open("listens").close()
    socket.create_connection(address).sendall(b"1")
"""


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_nodes_may_start_in_any_order(tmp_path: Path, order: tuple[int, int]) -> None:
    """Where node 0 will be is known before it starts, so that the others can wait for it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    world = World(tmp_path, MEET, ranks=1, nodes=2, env={"SHOWN_PORT": port})
    os.mkfifo(tmp_path / "listens")  # opening it waits for the other side
    first = world.start(order[0])
    until((tmp_path / names.node_file(order[0])).exists, "the first node is up")
    second = world.start(order[1])
    shown = {node: process.communicate(timeout=60)[0] for node, process in zip(order, (first, second), strict=True)}

    assert shown[0] == "[node0 rank0] met 1\n"
    assert (first.returncode, second.returncode) == (0, 0)


def test_a_node_that_waits_for_its_spec_goes_when_nobody_sends_one(tmp_path: Path) -> None:
    """A caller that gives up, or dies, closes the pipe."""
    done = subprocess.run(
        [*BOOT, "-", "--node", "0"], stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=tmp_path,
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_rank_that_dies_while_stacks_are_asked_for_is_seen(tmp_path: Path) -> None:
    """A wish for stacks that meets a dead rank does not take its end away from boot."""
    world = World(tmp_path, "import os, threading\nprint(os.getpid(), flush=True)\nthreading.Event().wait()\n", ranks=1)
    with world.start() as boot:
        assert boot.stdout is not None
        pid = int(boot.stdout.readline().split()[-1])
        boot.send_signal(signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)
        boot.send_signal(signal.SIGUSR1)
        boot.send_signal(signal.SIGCONT)
        try:
            boot.communicate(timeout=10)
        finally:
            boot.kill()

    assert boot.returncode == 137
    assert world.result(0).cause == "signal"


def test_a_full_disk_costs_logs_and_results_but_not_the_run(tmp_path: Path) -> None:
    """Nothing can be written from the start: every rank still runs to its end, whose code is boot's; kit's own frames are not shown."""
    script = f"{LAST}print('hello', flush=True)\nsys.exit(7 if last else 0)\n"
    World(tmp_path, script)
    limits = "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); "
    done = subprocess.run(
        [sys.executable, "-c", limits + BOOT[2], str(tmp_path / names.SPEC_FILE), "--node", "0"], capture_output=True,
        text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip

    assert done.returncode == 7, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[node0 rank0] hello", "[node0 rank1] hello"]
    assert "Traceback" not in done.stderr
    assert done.stderr.count("cannot write its log") == 2


def test_a_full_disk_does_not_hide_an_exception(tmp_path: Path) -> None:
    """The script's own traceback is shown, and the code is that of an exception."""
    world = World(tmp_path, "import shutil, os\nshutil.rmtree(os.environ['GONE'])\nraise ValueError('boom')\n", ranks=1,
                  env={"GONE": str(tmp_path)})  # fmt: skip
    code, _, err = world.run()

    assert code == 1
    assert "ValueError: boom" in err
    assert err.count("Traceback") == 1
