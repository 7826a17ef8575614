"""Addresses and ports of a run: a free subnet for its containers, a reserved port for local ranks."""

import hashlib
import ipaddress
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from accelkit.host.errors import KitError, UsageError

CONTAINER_PORT: Final = 29500
"""The rendezvous port inside containers, where each run has a network namespace of its own."""

_POOL: Final = ipaddress.ip_network("10.128.0.0/10")


def free_subnet(run_id: str, nodes: int, taken: Iterable[str]) -> str:
    """A subnet with room for `nodes` containers that overlaps none of `taken` (CIDRs).

    Starts at a place that the run's ID decides, so that runs which start at the same time look at different ones first.
    Raises KitError when the pool is exhausted.
    """
    prefix = min(24, 32 - (nodes + 3).bit_length())
    used = [ipaddress.ip_network(cidr, strict=False) for cidr in taken]
    count = 2 ** (prefix - _POOL.prefixlen)
    first = int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:4], "big") % count
    size = 2 ** (32 - prefix)
    for step in range(count):
        start = int(_POOL.network_address) + ((first + step) % count) * size
        subnet = ipaddress.ip_network((start, prefix))
        if not any(subnet.overlaps(other) for other in used if other.version == subnet.version):
            return str(subnet)
    raise KitError(
        f"no free subnet of {_POOL} is left for the run's network", hint="kit runs clean removes those of ended runs"
    )


def node_address(subnet: str, node: int) -> str:
    """Fixed address of a node: the gateway has .1, node 0 has .2."""
    return str(ipaddress.ip_network(subnet).network_address + 2 + node)


def host_routes(table: Path = Path("/proc/net/route")) -> list[str]:
    """CIDRs that this machine routes (less the default route); empty where the kernel does not tell."""
    try:
        lines = table.read_text().splitlines()[1:]
    except OSError:
        return []
    found = []
    for line in lines:
        columns = line.split()
        target, mask = (int.from_bytes(bytes.fromhex(columns[i]), "little") for i in (1, 7))
        if target:
            found.append(f"{ipaddress.ip_address(target)}/{mask.bit_count()}")
    return found


class PortReservation:
    """A port of this machine that nobody else is given while this object lives.

    The socket is bound with SO_REUSEADDR but does not listen: the kernel hands the port to no other `bind(0)` and to no outgoing
    connection, while rank 0's store, which sets SO_REUSEADDR too, may bind and listen on it (socket(7), ip(7)).
    """

    def __init__(self, port: int | None = None) -> None:
        """Reserve `port`, or a free one. Raises UsageError when the port asked for is in use."""
        self._socket = _dual_stack_socket()
        try:
            self._socket.bind(("::" if self._socket.family == socket.AF_INET6 else "0.0.0.0", port or 0))  # noqa: S104
            if port is not None:
                _refuse_listener(port)
        except PermissionError as error:
            self._socket.close()
            raise UsageError(
                f"--port {port}: only root may use it", hint="take one above 1023, or leave --port out: kit picks one"
            ) from error
        except OSError as error:
            self._socket.close()
            raise UsageError(
                f"--port {port}: in use on this machine", hint="leave --port out: kit picks a free one"
            ) from error
        self.port: int = self._socket.getsockname()[1]

    def fileno(self) -> int:
        """The socket's file descriptor, for a supervisor that takes the reservation over."""
        return self._socket.fileno()

    def close(self) -> None:
        """Give the port back."""
        self._socket.close()


def _dual_stack_socket() -> socket.socket:
    """A TCP socket for both address families, or IPv4 alone where the kernel has no IPv6."""
    try:
        made = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    except OSError:
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return made


def _refuse_listener(port: int) -> None:
    """Raise OSError when somebody listens on `port`: bind alone does not tell with SO_REUSEADDR in every case."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.5)
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise OSError(f"port {port} is in use")
