"""Memory that the ranks of one machine share: each writes its own part and reads the others'.

The memory is anonymous (`memfd_create`): it has no name in any folder, is not limited by the size of /dev/shm, and is gone
when the last process that maps it is, however it ended. Other ranks open it through /proc.

A rank writes into two halves in turn. When it writes a half again, everybody has entered the operation after the one that
was read from that half, so nobody reads it any more.
"""

import mmap
import os
from typing import Final

import torch

MOST: Final = 32 << 20
"""Bytes of a half; larger data goes through it in pieces."""
_LEAST: Final = 1 << 20
_PAGE: Final = 4096
"""A half begins at a multiple; the first page holds the token by which it is recognised."""
_NAME: Final = "accelkit"


class Region:
    """A piece of shared memory, mapped."""

    def __init__(self, descriptor: int, half: int) -> None:
        self.half = half
        self._map = mmap.mmap(descriptor, _PAGE + 2 * half)
        self._tensor = torch.frombuffer(self._map, dtype=torch.uint8)

    def token(self) -> bytes:
        """What its owner wrote at its start."""
        return self._map[:32]

    def mark(self, token: bytes) -> None:
        """Write the token."""
        self._map[:32] = token

    def part(self, offset: int, size: int) -> torch.Tensor:
        """A flat tensor of bytes that shares the memory."""
        return self._tensor[offset : offset + size]


class SharedMemory:
    """This rank's own region, and those of the others."""

    def __init__(self, descriptor: int, region: Region) -> None:
        self.descriptor = descriptor
        self.owners: list[int] = []
        """Process ids, by rank."""
        self._region = region
        self._retired: tuple[int, Region] | None = None
        self._second = False
        self._seen: dict[int, tuple[int, int, Region]] = {}

    @classmethod
    def create(cls, token: bytes) -> "SharedMemory | None":
        """A region of this rank's, marked with a token of 32 bytes; None where the system has no such memory."""
        try:
            descriptor, region = _create(_LEAST)
        except OSError:
            return None
        region.mark(token)
        return cls(descriptor, region)

    def can_read(self, owner: int, descriptor: int, token: bytes) -> bool:
        """Whether a rank's region can be opened, and is the one marked with this token."""
        try:
            if not os.readlink(f"/proc/{owner}/fd/{descriptor}").startswith(f"/memfd:{_NAME}"):
                return False
            return _open(owner, descriptor, _LEAST).token() == token
        except (OSError, ValueError):
            return False

    def place(self, size: int) -> tuple[torch.Tensor, tuple[int, int, int]]:
        """Where to write `size` bytes (at most `MOST`) now, and what the others must be told to find them: file, half, offset."""
        if size > self._region.half:
            self._grow(size)
        self._second = not self._second
        offset = _PAGE + (self._region.half if self._second else 0)
        return self._region.part(offset, size), (self.descriptor, self._region.half, offset)

    def _grow(self, size: int) -> None:
        """Start a larger region. The one before stays, since others may still be about to open it."""
        half = min(MOST, 1 << (size - 1).bit_length())
        descriptor, region = _create(half)
        if self._retired is not None:
            os.close(self._retired[0])
        self._retired = self.descriptor, self._region
        self.descriptor, self._region = descriptor, region

    def read(self, rank: int, file: int, half: int, offset: int, size: int) -> torch.Tensor:
        """What a rank wrote, as a view that holds until the next operation; as RuntimeError what gloo would say of a rank that is gone."""
        seen = self._seen.get(rank)
        if seen is None or seen[:2] != (file, half):
            try:
                seen = (file, half, _open(self.owners[rank], file, half))
            except (FileNotFoundError, ProcessLookupError) as error:  # it has ended since it sent its frame
                raise RuntimeError(f"Connection closed by peer: rank {rank} has ended") from error
            self._seen[rank] = seen
        return seen[2].part(offset, size)


def _create(half: int) -> tuple[int, Region]:
    if not hasattr(os, "memfd_create"):
        raise OSError("this system has no anonymous shared memory")
    descriptor = os.memfd_create(_NAME)
    os.truncate(descriptor, _PAGE + 2 * half)
    return descriptor, Region(descriptor, half)


def _open(owner: int, descriptor: int, half: int) -> Region:
    handle = os.open(f"/proc/{owner}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    try:
        return Region(handle, half)
    finally:
        os.close(handle)
