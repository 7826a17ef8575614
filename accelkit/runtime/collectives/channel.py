"""How data gets from every rank to every rank: in the frame, through memory of this machine, or by the carrier."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from accelkit.runtime.collectives import frames
from accelkit.runtime.collectives.base import Collectives
from accelkit.runtime.collectives.neighbours import Neighbours, find_neighbours
from accelkit.runtime.collectives.shared import MOST, SharedMemory
from accelkit.runtime.collectives.watch import Watch

_NOWHERE = (-1, 0, 0)
_MORE = b"more".ljust(32)
"""The digest of a frame that only says where the next piece lies."""


@dataclass(frozen=True)
class Cargo:
    """What a rank brings to an operation, on the CPU."""

    size: int
    """Bytes."""
    write: Callable[[torch.Tensor], object]
    """Fills a flat tensor of `size` bytes."""
    flat: Callable[[], torch.Tensor]
    """The bytes as one flat tensor; a view of what is there already, where that is possible."""


NO_CARGO = Cargo(0, lambda _: None, lambda: torch.empty(0, dtype=torch.uint8))


class Channel:
    """One rank's end. All ranks make the same calls in the same order."""

    def __init__(self, carrier: Collectives, control: torch.device, watch: Watch | None, limit: float) -> None:
        self.carrier = carrier
        self.control = control
        """The device on which frames travel."""
        self._watch = watch
        self._mine, self.all = frames.Frame(), frames.Frames(carrier.size)
        self.headers: list[frames.Header] = []
        """What every rank said of its data in the last :meth:`meet`."""
        self._limit = limit
        """Seconds that an exchange may take."""
        self._neighbours: Neighbours | None = None
        self._memory: SharedMemory | None = None
        self._is_open = False
        """Whether it was found out if the ranks are on one machine."""

    def meet(self, operation: str, mark: bytes, numbers: Sequence[int], cargo: Cargo) -> bool:
        """Show each other a digest, numbers and, where it fits, data. Whether all digests are the same. One collective."""
        is_inline = cargo.size <= frames.room(len(numbers))
        watch = self._watch
        if watch is not None:
            watch.begin(operation)
        try:
            if not self._is_open:
                self._open()
            place = _NOWHERE if is_inline or self._memory is None else self._write(cargo, 0)
            header = frames.Header(cargo.size, len(numbers), *place)
            self._mine.write(mark, header, numbers)
            if is_inline and cargo.size:
                cargo.write(self._mine.data(header))
            self._send(header)
        except RuntimeError as error:
            if watch is not None:
                watch.explain(error)
            raise
        finally:
            if watch is not None:
                watch.end()
        self.headers = self.all.headers()
        return self.all.agree(mark)

    def _open(self) -> None:
        self._neighbours = find_neighbours(self.carrier, self._limit)
        self._memory = None if self._neighbours is None else self._neighbours.memory
        self._is_open = True

    def _send(self, header: frames.Header) -> None:
        """Exchange frames."""
        if self._neighbours is not None:
            message = self._mine.message(header)
            self._neighbours.exchange(message, self.all.rows)
            self.all.rows[self.carrier.rank][: len(message)] = message
        elif self.control.type == "cpu":
            self.carrier.all_gather_into(self.all.tensor, self._mine.tensor)
        else:
            gathered = self.carrier.all_gather(self._mine.tensor.to(self.control))
            self.all.tensor.copy_(gathered.view(-1))

    def _write(self, cargo: Cargo, start: int) -> tuple[int, int, int]:
        """Put (a piece of) the cargo into shared memory; where it is."""
        assert self._memory is not None
        size = min(cargo.size - start, MOST)
        area, place = self._memory.place(size)
        if size == cargo.size:
            cargo.write(area)
        else:
            area.copy_(cargo.flat()[start : start + size])
        return place

    def seen(self, rank: int) -> torch.Tensor | None:
        """After :meth:`meet`, the data of a rank where it is at hand: a view that holds until the next operation."""
        header = self.headers[rank]
        if header.inline:
            return self.all.data(rank, header)
        if header.file < 0 or header.size > MOST or self._memory is None:
            return None
        return self._memory.read(rank, header.file, header.capacity, header.offset, header.size)

    def collect(self, cargo: Cargo) -> torch.Tensor | list[torch.Tensor]:
        """After :meth:`meet`, the data of every rank as flat bytes.

        A matrix with a row a rank, or the rows. What is not a contiguous matrix is to be copied before the next operation.
        """
        headers = self.headers
        first = headers[0]
        if first.inline and all(header[:2] == first[:2] for header in headers):
            return self.all.columns(first)
        most = max(header.size for header in headers)
        if self._memory is not None and most > MOST:
            return self._in_pieces(cargo, headers, most)
        found = [self.seen(rank) for rank in range(self.carrier.size)]
        at_hand = [part for part in found if part is not None]
        return at_hand if len(at_hand) == len(found) else self._by_carrier(cargo, headers, most)

    def _by_carrier(
        self, cargo: Cargo, headers: Sequence[frames.Header], most: int
    ) -> torch.Tensor | list[torch.Tensor]:
        flat = cargo.flat()
        if cargo.size < most:
            flat = torch.cat([flat, flat.new_zeros(most - cargo.size)])
        rows = self.carrier.all_gather(flat.to(self.control)).to("cpu")
        return _trimmed(rows, headers)

    def _in_pieces(
        self, cargo: Cargo, headers: Sequence[frames.Header], most: int
    ) -> torch.Tensor | list[torch.Tensor]:
        """Data larger than the shared memory, a piece at a time."""
        rows = torch.empty((len(headers), most), dtype=torch.uint8)
        for start in range(0, most, MOST):
            if start:
                here = self._write(cargo, start) if start < cargo.size else _NOWHERE
                header = frames.Header(cargo.size, 0, *here)
                self._mine.write(_MORE, header, ())
                self._send(header)
                headers = self.all.headers()
            for rank, row in enumerate(rows):
                self._copy_piece(rank, headers[rank], row[start : min(start + MOST, headers[rank].size)])
        return _trimmed(rows, headers)

    def _copy_piece(self, rank: int, header: frames.Header, piece: torch.Tensor) -> None:
        if piece.numel() and header.inline:
            piece.copy_(self.all.data(rank, header))
        elif piece.numel() and self._memory is not None:
            piece.copy_(self._memory.read(rank, header.file, header.capacity, header.offset, piece.numel()))


def _trimmed(rows: torch.Tensor, headers: Sequence[frames.Header]) -> torch.Tensor | list[torch.Tensor]:
    """The rows without what fills them up: the matrix itself where nothing does."""
    if all(header.size == rows.shape[1] for header in headers):
        return rows
    return [row[: header.size] for row, header in zip(rows, headers, strict=True)]
