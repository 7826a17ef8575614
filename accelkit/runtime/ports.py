"""Ports of this machine."""

import socket
import time

_DEFAULT = 29500
_PAUSES = (0.002, 0.1)
"""Seconds between two looks for a listener: at first, and at most."""


def is_port_in_use(port: int | str | None = None) -> bool:
    """Whether something on this machine listens on a port (None: 29500)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(("localhost", int(port) if port is not None else _DEFAULT)) == 0


def get_free_port() -> int:
    """A port that is free now; nothing keeps it free."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def await_listener(host: str, port: int, patience: float) -> bool:
    """Wait until something listens at `host`:`port`, at most `patience` seconds. Returns whether something does.

    torch's TCPStore, whose server has not started yet, is asked again only after pauses drawn at random, up to a second long:
    looking often before its client is made lets ranks begin together.
    """
    deadline = time.monotonic() + patience
    pause, longest = _PAUSES
    while True:
        try:
            socket.create_connection((host, port), timeout=max(deadline - time.monotonic(), longest)).close()
        except OSError:  # a name that is not known yet is one too
            if time.monotonic() + pause > deadline:
                return False
        else:
            return True
        time.sleep(pause)
        pause = min(pause * 1.5, longest)
