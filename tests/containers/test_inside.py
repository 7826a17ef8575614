"""What the ranks of a two-container run find inside: names, addresses, limits, users. One run, many looks."""

import json
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from tests.support.kit import dialogue, kit

LOOK = """
import ipaddress, json, os, pwd, resource, socket, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
def readable(path):
    with open(path) as file:
        return file.read()
found = {
    "master": socket.gethostbyname(os.environ["MASTER_ADDR"]), "port": os.environ["MASTER_PORT"],
    "own": socket.gethostbyname(socket.gethostname()), "interface": os.environ["GLOO_SOCKET_IFNAME"],
    "nccl": os.environ["NCCL_SOCKET_IFNAME"], "interfaces": [name for _, name in socket.if_nameindex()],
    "shm": os.statvfs("/dev/shm").f_frsize * os.statvfs("/dev/shm").f_blocks,
    "nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[0], "stack": resource.getrlimit(resource.RLIMIT_STACK)[0],
    "threads": os.environ["OMP_NUM_THREADS"], "pid1": readable("/proc/1/comm").strip(),
    "uid": os.getuid(), "user": pwd.getpwuid(os.getuid()).pw_name, "home": os.environ["HOME"],
    "writable": os.access(os.environ["HOME"], os.W_OK), "name": os.environ["USER"],
    "caches": [os.environ[n] for n in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME", "HF_HOME")],
    "foreign": [n for n in os.environ if n.startswith(("TORCHELASTIC", "PET_")) or n == "SECRET_OF_THE_HOST"],
    "capabilities": [l for l in readable("/proc/self/status").splitlines() if l.startswith(("CapEff", "NoNewPrivs"))],
}
with open(f"found{dist.get_rank()}.json", "w") as file:
    json.dump(found, file)
dist.barrier()
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of the two ranks found."""
    work = tmp_path_factory.mktemp("inside")
    (work / "look.py").write_text(LOOK)
    done = kit(
        "run", "--image", "cpu", "--nodes", "2", "--cpus", "2", "look.py", cwd=work, env={"SECRET_OF_THE_HOST": "1"}
    )
    assert done.code == 0, done.err
    return [json.loads((Path(work) / f"found{rank}.json").read_text()) for rank in range(2)]


def test_node_0_has_one_routable_address_that_all_agree_on(found: list[dict[str, Any]]) -> None:
    """An IPv4 address of the run's own network, neither loopback nor link-local, the same on every node; nodes resolve their own name."""
    assert found[0]["master"] == found[1]["master"] == found[0]["own"] != found[1]["own"]
    assert not found[0]["master"].startswith(("127.", "169.254."))
    assert int(found[0]["port"]) > 0


def test_collectives_use_the_interface_that_leads_to_node_0(found: list[dict[str, Any]]) -> None:
    """One name for gloo, the exact-match form for NCCL, and it is there."""
    for rank in found:
        assert rank["interface"] in rank["interfaces"]
        assert rank["interface"] != "lo"
        assert rank["nccl"] == f"={rank['interface']}"


def test_limits_are_what_training_needs(found: list[dict[str, Any]]) -> None:
    """Shared memory beyond 64 MiB, as many open files as the host may give, a stack for C++; cores are shared among all ranks."""
    for rank in found:
        assert rank["shm"] >= 1 << 30
        assert rank["nofile"] == min(1 << 20, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        assert rank["stack"] == 64 << 20
        assert rank["threads"] == "1"


def test_ranks_are_the_caller_with_a_name_a_home_and_caches(found: list[dict[str, Any]]) -> None:
    """Libraries that look for a user or write a cache find both; an init reaps what is orphaned."""
    for rank in found:
        assert rank["uid"] == os.getuid()
        assert rank["user"] == rank["name"] != ""
        assert rank["writable"]
        assert all(path.startswith(rank["home"]) for path in rank["caches"])
        assert rank["pid1"] in ("docker-init", "tini")


def test_nothing_of_the_host_is_passed_and_nothing_can_be_gained(found: list[dict[str, Any]]) -> None:
    """No variable that was not asked for; no capability; no way to new privileges."""
    for rank in found:
        assert rank["foreign"] == []
        assert any(line.split() == ["NoNewPrivs:", "1"] for line in rank["capabilities"])
        assert any(line.split() == ["CapEff:", "0000000000000000"] for line in rank["capabilities"])


def test_a_program_on_a_terminal_is_for_one_node(tmp_path: Path) -> None:
    """--interactive gives rank 0 our own terminal; several nodes are refused, since there is one terminal."""
    (tmp_path / "s.py").write_text(
        "while True:\n    try:\n        print('got', input('name? '))\n        break\n    except KeyboardInterrupt: print('caught')\n"
    )
    says = [("name? ", "\x03"), ("caught", "bob\n")]
    code, shown = dialogue("run", "--image", "cpu", "--interactive", "s.py", cwd=tmp_path, says=says)
    refused = kit("run", "--image", "cpu", "--nodes", "2", "--interactive", "s.py", cwd=tmp_path)

    assert (code, "got bob" in shown) == (0, True), shown
    assert refused.code == 2
    assert "--interactive" in refused.err
