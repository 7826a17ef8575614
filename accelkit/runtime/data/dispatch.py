"""Dispatching: rank 0 reads for all ranks and hands out one batch to each.

An epoch is opened by one broadcast that says how large the first rows are. Each step then is one broadcast of a row of bytes
for every rank but rank 0, and says how large the next ones are: 0 is the end, and a negative size says that the row which follows holds
nothing for this rank, whose last batch this is. What fails on rank 0 travels the same way.
"""

import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from accelkit.runtime.collectives.handout import Handout
from accelkit.runtime.data import wire
from accelkit.runtime.data.feeds import Delivery, Feed, Origin, Step
from accelkit.runtime.data.shard import Plan, Tail
from accelkit.runtime.data.stream import Mark
from accelkit.runtime.errors import BatchSourceError


@dataclass
class _Parcel:
    """A round, ready to be sent."""

    rows: torch.Tensor
    present: int
    """How many ranks have a batch: the first ones."""
    value: Any = None
    """What rank 0 keeps."""
    tail: Tail | None = None
    marks: tuple[Mark, ...] = ()
    error: Exception | None = None

    @property
    def size(self) -> int:
        """Bytes of a row."""
        return self.rows.shape[1]

    def announced(self) -> torch.Tensor:
        """What the rows before say to each rank: how large this one is, negative where it holds nothing for the rank."""
        sizes = torch.full((len(self.rows),), self.size)
        sizes[max(self.present - 1, 0) :] *= -1
        return sizes


class DispatchFeed(Feed):
    """A feed of which only rank 0's is read."""

    def __init__(self, inner: Feed, handout: Handout, *, pin: bool) -> None:
        self.inner = inner
        self.base = inner.base
        self.counts_samples = inner.counts_samples
        self.per_step = inner.per_step
        self._handout = handout
        self._pin = pin and torch.accelerator.is_available() and handout.device.type == "cpu"

    @property
    def plan(self) -> Plan:  # type: ignore[override]
        """How batches are dealt."""
        return self.inner.plan

    def count_steps(self) -> int:
        """As the feed inside counts them."""
        return self.inner.count_steps()

    def set_even(self, even: bool) -> None:
        """The feed inside deals."""
        self.inner.set_even(even)

    def read(self, origin: Origin) -> Iterator[Delivery]:
        """What is read on rank 0."""
        return self.inner.read(origin)

    def renew(self) -> None:
        """Workers are rank 0's."""
        self.inner.renew()

    def steps(self, origin: Origin) -> Iterator[Step]:
        """The steps of this rank; all ranks take them together. Raises BatchSourceError where rank 0 could not read on."""
        return self._hand_out(origin) if self.plan.rank == 0 else self._take()

    def _hand_out(self, origin: Origin) -> Iterator[Step]:
        parcels = self._pack(origin)
        upcoming = next(parcels, None)
        self._handout.announce(0 if upcoming is None else upcoming.size)
        while upcoming is not None:
            current = upcoming
            upcoming = next(parcels, None)
            current.rows.view(torch.int64)[:, 0] = 0 if upcoming is None else upcoming.announced()
            self._handout.send(current.rows)
            if current.error is not None:
                raise current.error
            yield current.value, current.tail, upcoming is None, current.marks

    def _pack(self, origin: Origin) -> Iterator[_Parcel]:
        encoders = [wire.Encoder() for _ in range(self.plan.size - 1)]
        try:
            for values, tail, marks in self.rounds(origin):
                rows = [
                    encoder.encode(values[rank], tail) if rank < len(values) else wire.Row(wire.NOTHING)
                    for rank, encoder in enumerate(encoders, 1)
                ]
                yield _Parcel(_write(rows), len(values), values[0], tail, marks)
        except Exception as error:  # noqa: BLE001  (the ranks that wait must hear of it)
            rows = [wire.failure(traceback.format_exc())] * (self.plan.size - 1)
            yield _Parcel(_write(rows), self.plan.size, error=error)

    def _take(self) -> Iterator[Step]:
        decoder, size = wire.Decoder(), self._handout.hear()
        while size:
            row = self._handout.receive(abs(size))
            size, kind, value, tail = decoder.decode(row.pin_memory() if self._pin else row)
            if kind == wire.FAILURE:
                raise BatchSourceError(f"rank 0 reads the data for all ranks, and failed:\n{value}")
            if kind == wire.BATCH:
                yield value, tail, size <= 0, ()


def _write(rows: list[wire.Row]) -> torch.Tensor:
    made = torch.empty((len(rows), max(row.size for row in rows)), dtype=torch.uint8)
    for row, place in zip(rows, made, strict=True):
        row.write(place)
    return made
