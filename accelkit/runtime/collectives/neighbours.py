"""Ranks of one machine find each other: connections on which frames travel, and memory that they share.

A message on a socket wakes its reader at once, where a collective of gloo takes its threads some hundred microseconds; a wait can
be interrupted, and a rank that ends is noticed by the others. Nothing of it has a name in any folder: addresses are abstract, the
memory is anonymous, and the kernel takes both back however a process ends.
"""

import os
import secrets
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from accelkit.runtime.collectives.base import Collectives
from accelkit.runtime.collectives.shared import SharedMemory

_OPENING = 20.0
"""Seconds in which connections are made; they take milliseconds."""
_GREETING = 64


class Card(NamedTuple):
    """What a rank tells the others once."""

    machine: str
    process: int
    memory: int
    """Its descriptor of shared memory; -1 without."""
    token: str
    """Known to the ranks of this run only."""


class Neighbours:
    """This rank's connections to all others, and the shared memory."""

    def __init__(self, rank: int, links: Sequence[socket.socket | None], memory: SharedMemory, limit: float) -> None:
        self.memory = memory
        self._limit = limit
        self._links = [(other, link) for other, link in enumerate(links) if link is not None]
        for _, link in self._links:
            link.settimeout(limit)
        self._rank = rank

    def exchange(self, frame: memoryview, received: Sequence[memoryview]) -> None:
        """Send a frame to every other rank, and receive theirs; as RuntimeError what gloo would say of a rank that is gone or late."""
        try:
            for _, link in self._links:
                link.send(frame)
        except (BrokenPipeError, ConnectionError) as error:
            raise RuntimeError("Connection closed by peer: a rank of this machine has ended") from error
        for other, link in self._links:
            try:
                size = link.recv_into(received[other])
            except TimeoutError as error:
                raise RuntimeError(f"timed out after {self._limit:.0f} s of waiting for rank {other}") from error
            except ConnectionError:
                size = 0
            if size == 0:
                raise RuntimeError(f"Connection closed by peer: rank {other} has ended")


def find_neighbours(carrier: Collectives, limit: float) -> Neighbours | None:
    """Connect all ranks; None, on every rank, where they are not all on one machine or it does not allow it. All ranks call it.

    Args: `limit`, the seconds that an exchange may take.
    """
    token = secrets.token_hex(16)
    own = SharedMemory.create(token.encode())
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        listener.bind(_address(token))
        listener.listen(carrier.size)
        cards = carrier.exchange(Card(_machine(), os.getpid(), -1 if own is None else own.descriptor, token))
        if any(card.machine != cards[0].machine or card.memory < 0 for card in cards) or own is None:
            return None
        links: list[socket.socket | None] = []
        try:
            links = _connect(listener, carrier.rank, cards)
            works = all(own.can_read(card.process, card.memory, card.token.encode()) for card in cards)
        except OSError:
            works = False
        if not all(carrier.exchange(works)):
            for link in filter(None, links):
                link.close()
            return None
    own.owners = [card.process for card in cards]
    return Neighbours(carrier.rank, links, own, limit)


def _connect(listener: socket.socket, rank: int, cards: Sequence[Card]) -> list[socket.socket | None]:
    """A connection to every other rank: this one calls those before it, and those after it call."""
    links: list[socket.socket | None] = [None] * len(cards)
    listener.settimeout(_OPENING)
    for other, card in enumerate(cards[:rank]):
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        link.settimeout(_OPENING)
        link.connect(_address(card.token))
        link.send(f"{rank} {cards[rank].token}".encode())
        links[other] = link
    while None in links[rank + 1 :]:
        link, _ = listener.accept()
        link.settimeout(_OPENING)
        number, _, said = link.recv(_GREETING).decode().partition(" ")
        other = int(number) if number.isdigit() else -1
        if rank < other < len(cards) and secrets.compare_digest(said, cards[other].token):
            links[other] = link
        else:
            link.close()  # somebody who is no rank of this run
    return links


def _address(token: str) -> str:
    return f"\0accelkit-{token}"


def _machine() -> str:
    """Where process ids mean the same: this machine since it started, and these namespaces of processes and of the network."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        spaces = [os.stat(f"/proc/self/ns/{name}").st_ino for name in ("pid", "net")]
        return f"{socket.gethostname()} {boot} {spaces}"
    except OSError:
        return secrets.token_hex()  # no other rank has the same
