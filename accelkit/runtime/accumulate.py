"""Accumulating gradients: which micro-batch completes a window."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from torch import nn

from accelkit.runtime.gradients import GradientState

NoSync = Callable[[Sequence[nn.Module]], AbstractContextManager[Any]]


class Accumulation:
    """Counts micro-batches and decides when gradients are synchronised."""

    def __init__(self, state: GradientState, no_sync: NoSync) -> None:
        self.state = state
        self.no_sync = no_sync
        """A block in which backward leaves the gradients of models where they are."""
        self.step = 0
        """Micro-batches since the last loader's end."""
        self.depth = 0
        """Blocks that are open."""

    def advance(self) -> bool:
        """Count one micro-batch; True when it completes a window. The last batch of a loader always does."""
        state = self.state
        if state.take_end() and state.sync_with_dataloader:
            self.complete()
        else:
            self.step += 1
            state.sync_gradients = self.step % state.num_steps == 0
        return state.sync_gradients

    def complete(self) -> None:
        """End the window with the micro-batch in use; the next one begins another."""
        self.step = 0
        self.state.sync_gradients = True

    @property
    def differs(self) -> bool:
        """Whether some micro-batches synchronise gradients and others do not."""
        return self.state.num_steps > 1 and not self.state.sync_each_batch


class MicroBatch:
    """A block around one micro-batch. Inside another one it belongs to the same, unless a loader has moved on in between."""

    __slots__ = ("_accumulation", "_inner", "_models")

    def __init__(self, accumulation: Accumulation, models: Sequence[nn.Module]) -> None:
        self._accumulation = accumulation
        self._models = models
        self._inner: AbstractContextManager[Any] | None = None

    def __enter__(self) -> None:
        accumulation = self._accumulation
        state = accumulation.state
        if not accumulation.depth or state.has_moved:
            accumulation.advance()
        accumulation.depth += 1
        if not state.sync_gradients and not state.sync_each_batch:
            self._inner = accumulation.no_sync(self._models)
            self._inner.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._accumulation.depth -= 1
        if self._inner is not None:
            self._inner.__exit__(kind, error, trace)
