"""Reading a mapped model in from the disk while its first forward runs, for models that need no other hook.

A model on the CPU whose weights are views of files costs no read until it runs. Left to page faults, its first forward would read in
small pieces, one wait after another; so when that forward begins, a thread reads all weights in the order of the model.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch import nn

from accelkit.runtime.bigmodel.hooks import Addition, remove_additions
from accelkit.runtime.bigmodel.mapping import Region, merged, region_of
from accelkit.runtime.bigmodel.prefetch import WORKER
from accelkit.runtime.bigmodel.rooms import free_host_memory
from accelkit.runtime.bigmodel.tensors import all_slots

PIECE: Final = 32 << 20
"""Bytes that are entered into memory at a time."""
_AHEAD: Final = 8
"""Pieces that the disk is asked for before they are entered."""


def read_at_first_forward(model: nn.Module) -> None:
    """Have the weights that are views of files read when the model first runs. Does nothing for a model without such."""
    if any(region_of(slot.tensor) is not None for slot in all_slots(model)):
        model.register_forward_pre_hook(_FirstForward())
        model.__dict__["__prepare_scriptable__"] = _Scriptable(model)


class _Scriptable(Addition):
    """What torch.jit.script calls beforehand: hooks that are no TorchScript would stop it."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self) -> Any:
        """The model without what waits for its first forward."""
        remove_additions(self.model)
        prepare = getattr(self.model, "__prepare_scriptable__", None)
        return self.model if prepare is None else prepare()


class _FirstForward(Addition):
    """Begins the reading, and is gone."""

    def __call__(self, module: nn.Module, _: Any) -> None:
        if torch.compiler.is_compiling():
            return
        remove_additions(module)
        pieces = list(_within(_pieces(module), free_host_memory()))
        if pieces:
            _Reading(pieces).go_on()


class _Reading:
    """One pass over the pieces, a piece a job, so that the thread is free for others in between."""

    def __init__(self, pieces: Sequence[Region]) -> None:
        self._pieces = pieces
        self._at = 0

    def go_on(self) -> None:
        """Have the next piece read soon."""
        WORKER.submit(id(self), self._read)

    def _read(self) -> None:
        ahead = (
            self._pieces[self._at : self._at + _AHEAD] if self._at == 0 else self._pieces[self._at + _AHEAD - 1 :][:1]
        )
        for piece in ahead:
            piece.will_need()
        self._pieces[self._at].make_ready()
        self._at += 1
        if self._at < len(self._pieces):
            self.go_on()


def _pieces(model: nn.Module) -> Iterator[Region]:
    """The mapped memory of a model in its order, cut up."""
    for _, module in model.named_modules():
        found = (region_of(tensor) for tensor in (*module.parameters(False), *module.buffers(False)))
        for region in merged(region for region in found if region is not None):
            for start in range(0, region.size, PIECE):
                yield Region(region.address + start, min(PIECE, region.size - start), region.owner)


def _within(pieces: Iterator[Region], limit: int) -> Iterator[Region]:
    """As many as there is room for: what is read after that would push out what was read before."""
    total = 0
    for piece in pieces:
        total += piece.size
        if total > limit:
            return
        yield piece
