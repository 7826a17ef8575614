"""Digests of a file: the CRC-32 of each chunk, which every load checks.

Chunks are independent, so several threads compute and check them; zlib lets go of the interpreter lock meanwhile. What has been
damaged has another CRC in all but one of four billion cases per chunk. Nothing stronger is kept: against somebody who can change
the files, and so the manifest, no digest helps, and SHA-256 costs more than twice as much time.
"""

import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

CHUNK: Final = 64 * 2**20
"""Bytes per chunk."""
THREADS: Final = 3
_READ: Final = 2**20
_INLINE: Final = 2**16
"""Smaller writes are not worth another thread."""


@dataclass(frozen=True, kw_only=True)
class Digests:
    """What a file must be."""

    size: int
    """Bytes."""
    crc32: tuple[str, ...]
    """Of each chunk, eight hexadecimal digits."""


class _Chunk:
    """The CRC-32 of a chunk, piece by piece."""

    def __init__(self) -> None:
        self._crc = 0

    def update(self, piece: memoryview) -> None:
        self._crc = zlib.crc32(piece, self._crc)

    def __str__(self) -> str:
        return f"{self._crc:08x}"


class DigestingFile:
    """A file that is written from its beginning to its end; its digests are computed beside the writing.

    `close` returns when the data is on the disk. `torch.save` takes one for a file.
    """

    def __init__(self, path: Path, pool: Executor) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._pool = pool
        self._chunks: list[_Chunk] = []
        self._position = 0
        self._overlaps = not isinstance(pool, Inline)
        self._flushing: Future[None] | None = None
        self._flushed = 0

    def write(self, data: Any) -> int:
        """Write all of `data`, anything with a buffer; returns its size in bytes."""
        view = memoryview(data).cast("B")
        pending: list[Future[None]] = []
        try:
            for chunk, piece in self._cut(view):
                if len(piece) > _INLINE:
                    pending.append(self._pool.submit(chunk.update, piece))
                else:
                    chunk.update(piece)
                _write_all(self._descriptor, piece)
                self._flush_early()
        finally:
            wait(pending)  # the memory is the caller's again
        return len(view)

    def _flush_early(self) -> None:
        """Let the disk work on what is there, while the rest is written: the kernel would wait for the end."""
        if not self._overlaps or self._position - self._flushed < CHUNK:
            return
        if self._flushing is not None:
            if not self._flushing.done():
                return
            self._flushing.result()  # a failure is told once: fsync at the end would not know of it
        self._flushed = self._position
        self._flushing = self._pool.submit(os.fdatasync, self._descriptor)

    def _cut(self, view: memoryview) -> Iterator[tuple[_Chunk, memoryview]]:
        while len(view):
            if self._position % CHUNK == 0:
                self._chunks.append(_Chunk())
            piece = view[: CHUNK - self._position % CHUNK]
            view = view[len(piece) :]
            self._position += len(piece)
            yield self._chunks[-1], piece

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> Digests:
        """Bring everything to the disk, and return the digests."""
        try:
            if self._flushing is not None:
                self._flushing.result()
            os.fsync(self._descriptor)
        finally:
            self.abandon()
        return Digests(size=self._position, crc32=tuple(map(str, self._chunks)))

    def abandon(self) -> None:
        """Close, whatever became of the content."""
        if self._flushing is not None:
            wait([self._flushing])
        os.close(self._descriptor)


def _write_all(descriptor: int, piece: memoryview) -> None:
    while len(piece):
        piece = piece[os.write(descriptor, piece) :]


def write_file(path: Path, pool: Executor, fill: Callable[[DigestingFile], Any]) -> Digests:
    """Make a new file, let `fill` write it, and return its digests when it is on the disk."""
    file = DigestingFile(path, pool)
    try:
        fill(file)
    except BaseException:
        file.abandon()
        raise
    return file.close()


def read_digests(path: Path, pool: Executor) -> Digests:
    """The digests of a file that somebody else wrote; brings it to the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        size = os.fstat(file.fileno()).st_size
        starts = range(0, size, CHUNK)
        return Digests(size=size, crc32=tuple(pool.map(lambda start: _read_chunk(file.fileno(), start), starts)))


def _read_chunk(descriptor: int, start: int) -> str:
    """The CRC-32 of the chunk that begins there, read through one small buffer."""
    chunk, buffer = _Chunk(), memoryview(bytearray(_READ))
    offset, end = start, start + CHUNK
    while count := os.preadv(descriptor, [buffer[: end - offset]], offset):
        chunk.update(buffer[:count])
        offset += count
    return str(chunk)


@dataclass(frozen=True)
class Damage:
    """A chunk that is not what was written."""

    file: str
    start: int
    """Its first byte."""

    def __str__(self) -> str:
        return f"{self.file}: bytes {self.start} to {self.start + CHUNK - 1} are not what was saved"


def find_damage(files: Sequence[tuple[str, Path, Digests]], pool: Executor, share: slice) -> list[Damage]:
    """Chunks whose CRC-32 is another one. `share` chooses among all chunks: ranks divide them."""
    tasks = [(name, path, index, crc) for name, path, digests in files for index, crc in enumerate(digests.crc32)]

    def check(task: tuple[str, Path, int, str]) -> Damage | None:
        name, path, index, crc = task
        with path.open("rb", buffering=0) as file:
            intact = _read_chunk(file.fileno(), index * CHUNK) == crc
        return None if intact else Damage(name, index * CHUNK)

    return [damage for damage in pool.map(check, tasks[share]) if damage is not None]


def threads() -> ThreadPoolExecutor:
    """Threads for digests, beside the one that writes or waits."""
    return ThreadPoolExecutor(THREADS, thread_name_prefix="accelkit-digest")


class Inline(Executor):
    """No threads: what is submitted is done at once. For a thread that outlives the interpreter's pools."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Call the function."""
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done
