"""Ports of this machine: waiting for a listener."""

import socket
import threading

from accelkit.runtime import ports


def test_a_listener_that_comes_later_is_found() -> None:
    """Who waits for a port sees the listener that starts after it began to wait, and takes nothing from the connections that follow."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        assert not ports.await_listener("127.0.0.1", port, 0.05)
        timer = threading.Timer(0.3, server.listen)
        timer.start()
        try:
            assert ports.await_listener("127.0.0.1", port, 30)
        finally:
            timer.join()
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            client.sendall(b"hello")
            server.settimeout(10)
            received = [connection.recv(5) for connection, _ in (server.accept(), server.accept())]
        assert received == [b"", b"hello"]


def test_nobody_listens() -> None:
    """A port that nobody listens on, and a name that nobody knows, end the wait with False instead of an error."""
    free = ports.get_free_port()
    assert not ports.await_listener("127.0.0.1", free, 0.1)
    assert not ports.await_listener("nobody.invalid", free, 0.1)
