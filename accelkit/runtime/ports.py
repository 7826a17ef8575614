"""Ports of this machine."""

import socket

_DEFAULT = 29500


def is_port_in_use(port: int | str | None = None) -> bool:
    """Whether something on this machine listens on a port (None: 29500)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(("localhost", int(port) if port is not None else _DEFAULT)) == 0


def get_free_port() -> int:
    """A port that is free now; nothing keeps it free."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
