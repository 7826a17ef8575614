"""Addresses and ports of a run."""

import ipaddress
import socket

import pytest

from accelkit.host.errors import KitError, UsageError
from accelkit.host.launch.network import PortReservation, free_subnet, host_routes, node_address


@pytest.mark.parametrize("nodes", [2, 3, 200, 1000])
def test_a_subnet_has_room_for_every_node(nodes: int) -> None:
    """Gateway, nodes and broadcast all fit, whatever the number of nodes."""
    subnet = ipaddress.ip_network(free_subnet("run", nodes, []))
    addresses = {ipaddress.ip_address(node_address(str(subnet), i)) for i in range(nodes)}

    assert len(addresses) == nodes
    assert all(a in subnet for a in addresses)
    assert subnet.broadcast_address not in addresses
    assert subnet.network_address + 1 not in addresses


def test_a_subnet_avoids_what_is_taken() -> None:
    """Two runs with one ID get different subnets when the first one's is taken."""
    first = free_subnet("run", 2, [])
    second = free_subnet("run", 2, [first, "2001:db8::/64"])

    assert not ipaddress.ip_network(first).overlaps(ipaddress.ip_network(second))


def test_runs_that_start_together_look_at_different_subnets_first() -> None:
    """IDs decide where the search starts."""
    assert len({free_subnet(f"run-{i}", 2, []) for i in range(50)}) > 45


def test_no_free_subnet_is_an_error_that_says_what_to_type() -> None:
    """An exhausted pool is never silently shared."""
    with pytest.raises(KitError, match="no free subnet") as caught:
        free_subnet("run", 2, ["10.0.0.0/8"])

    assert "kit runs clean" in str(caught.value.hint)


def test_routes_of_this_machine_are_read() -> None:
    """Every route but the default one, as CIDR."""
    for route in host_routes():
        assert ipaddress.ip_network(route).prefixlen > 0


def test_a_reserved_port_is_given_to_nobody_else_but_the_store_may_listen_on_it() -> None:
    """No bind(0) of another gets it; a socket with SO_REUSEADDR, as torch's store has, may bind and listen."""
    mine = PortReservation()
    others = [PortReservation() for _ in range(300)]
    store = socket.socket(socket.AF_INET6)
    store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    assert mine.port not in {o.port for o in others}
    store.bind(("::", mine.port))
    store.listen()
    for held in (store, mine, *others):
        held.close()


def test_a_port_in_use_is_refused_by_name() -> None:
    """--port with a listener on it is an error before anything starts."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]

        with pytest.raises(UsageError, match=f"--port {port}"):
            PortReservation(port)
