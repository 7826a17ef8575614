"""What ranks show each other before anything else: a frame of one fixed size, whatever the operation.

Because every frame has the same size, ranks that call different operations, or bring different shapes, still meet: each
sees what the others hold, and nothing can hang or interleave. Small data travels inside the frame.

Layout: a digest of 32 bytes; whole numbers of 8 bytes that describe the data (see `Header`); the operation's own numbers; data.
"""

import hashlib
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import torch

SIZE: Final = 4096
"""Bytes. Up to here a collective of a few ranks takes no longer than one of a byte."""
_DIGEST: Final = 32
_WORD: Final = 8
_START: Final = 10
"""The word at which an operation's own numbers begin."""
MOST_NUMBERS: Final = 256
_WORDS: Final = struct.Struct("=5q")


class Header(NamedTuple):
    """What a frame says beside its digest."""

    size: int
    """Bytes of data that the rank brings."""
    numbers: int
    """How many numbers follow."""
    file: int
    """The rank's descriptor of shared memory in which its data lies; -1: none."""
    capacity: int
    """Size of that memory."""
    offset: int
    """Where in it the data begins."""

    @property
    def inline(self) -> bool:
        """Whether the data is in the frame."""
        return self.size <= room(self.numbers)


def digest(text: str) -> bytes:
    """The fingerprint of what ranks must have in common."""
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST).digest()


def room(numbers: int) -> int:
    """Bytes of data that fit in a frame with so many numbers."""
    return SIZE - _data_start(numbers)


def _data_start(numbers: int) -> int:
    return -(-(_START + numbers) * _WORD // 16) * 16


class Frame:
    """One rank's frame, used again for every operation."""

    def __init__(self) -> None:
        self._memory = bytearray(SIZE)
        self._words = memoryview(self._memory).cast("q")
        self.tensor = torch.frombuffer(self._memory, dtype=torch.uint8)
        """The frame as a tensor that shares its memory."""

    def write(self, mark: bytes, header: Header, numbers: Sequence[int]) -> None:
        """Fill in everything but data."""
        self._memory[:_DIGEST] = mark
        words = self._words
        words[4], words[5], words[6], words[7], words[8] = header
        for place, number in enumerate(numbers, _START):
            words[place] = number

    def message(self, header: Header) -> memoryview:
        """The part of the frame that says something."""
        end = _data_start(header.numbers) + (header.size if header.inline else 0)
        return memoryview(self._memory)[:end]

    def data(self, header: Header) -> torch.Tensor:
        """Where data goes, as a tensor that shares the frame's memory."""
        start = _data_start(header.numbers)
        return self.tensor[start : start + header.size]


class Frames:
    """The frames of all ranks, received into the same memory every time."""

    def __init__(self, ranks: int) -> None:
        self._memory = bytearray(SIZE * ranks)
        self._words = memoryview(self._memory).cast("q")
        self.ranks = ranks
        self.tensor = torch.frombuffer(self._memory, dtype=torch.uint8)
        """All frames as one flat tensor that shares their memory."""
        self._matrix = self.tensor.view(ranks, SIZE)
        self.rows = [memoryview(self._memory)[rank * SIZE : (rank + 1) * SIZE] for rank in range(ranks)]
        """The frames, to be received into."""
        self._starts = range(_DIGEST, SIZE * ranks, SIZE)

    def agree(self, mark: bytes) -> bool:
        """Whether all ranks show this digest."""
        memory = self._memory
        return all(memory[start : start + _DIGEST] == mark for start in range(0, SIZE * self.ranks, SIZE))

    def headers(self) -> list[Header]:
        """What each rank says of its data."""
        return [Header(*_WORDS.unpack_from(self._memory, start)) for start in self._starts]

    def numbers(self, rank: int, header: Header) -> list[int]:
        """The numbers of a rank."""
        start = rank * (SIZE // _WORD) + _START
        return self._words[start : start + header.numbers].tolist()

    def data(self, rank: int, header: Header) -> torch.Tensor:
        """The data in a rank's frame; until the next exchange."""
        start = rank * SIZE + _data_start(header.numbers)
        return self.tensor[start : start + header.size]

    def columns(self, header: Header) -> torch.Tensor:
        """The data in all frames, where all have the same header: a row a rank; until the next exchange."""
        start = _data_start(header.numbers)
        return self._matrix[:, start : start + header.size]
