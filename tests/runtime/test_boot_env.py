"""What a node finds out about itself: threads, addresses, interfaces."""

import socket

import pytest

from accelkit.contract.spec import LaunchSpec, Program
from accelkit.runtime import boot_env


def spec(**more: object) -> LaunchSpec:
    """A spec of one node with two ranks."""
    fields = {"run_id": "r", "nodes": 1, "procs_per_node": 2, "master_addr": "127.0.0.1", "master_port": 29500,
              "program": Program(kind="script", target="s.py"), "workdir": "/", "exchange_dir": "/", "output_dir": "/",
              "ranks_on_machine": 2} | more  # fmt: skip
    return LaunchSpec(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("usable", range(1, 20))
@pytest.mark.parametrize("ranks", range(1, 9))
def test_threads_are_the_cores_divided_by_all_ranks_of_the_machine(usable: int, ranks: int) -> None:
    """Never more threads than cores in sum, unless each rank has one; never none; a fixed number is taken as it is."""
    threads = boot_env.threads_of(spec(ranks_on_machine=ranks), usable)

    assert threads == max(1, usable // ranks)
    assert threads == 1 or threads * ranks <= usable
    assert boot_env.threads_of(spec(ranks_on_machine=ranks, threads=5), usable) == 5


def test_the_interface_is_the_one_that_leads_to_node_0() -> None:
    """Asked of the kernel: towards ourselves it is the loopback, with its address."""
    assert boot_env.route_to("127.0.0.1", 29500, 1) == ("lo", "127.0.0.1")


def test_a_name_that_nobody_knows_is_an_error_within_the_time_given() -> None:
    """The name and the time are said."""
    with pytest.raises(boot_env.JoinError, match=r"cannot reach nobody\.invalid within 0 s"):
        boot_env.route_to("nobody.invalid", 29500, 0)


@pytest.mark.parametrize("address", ["127.0.1.1", "169.254.7.7"])
def test_an_address_that_others_cannot_use_is_refused(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Debian gives a machine's own name 127.0.1.1, an interface without DHCP has a link-local address: ranks would talk to themselves."""
    found = [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", (address, 29500))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found)
    with pytest.raises(boot_env.JoinError, match=f"node0 is {address} here"):
        boot_env.route_to("node0", 29500, 0)


def test_no_variable_of_another_launcher_reaches_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torchrun's and Kubeflow's own variables would make the script believe that another launcher started it."""
    for name in ("TORCHELASTIC_RUN_ID", "PET_NNODES", "ROLE_RANK", "MASTER_ADDR", "WORLD_SIZE"):
        monkeypatch.setenv(name, "foreign")
    env = boot_env.rank_environment(spec(), 0, 1, 3, None)

    assert "foreign" not in env.values()
    assert (env["RANK"], env["WORLD_SIZE"], env["MASTER_ADDR"], env["MASTER_PORT"]) == ("1", "2", "127.0.0.1", "29500")
    assert {env[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")} == {"3"}
    assert env["PYTHONUNBUFFERED"] == "1"
