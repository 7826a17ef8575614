"""Saving beside training: a copy into buffers that are kept between saves, and a thread that writes it."""

import atexit
import sys
import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from accelkit.runtime.checkpoint import digest
from accelkit.runtime.checkpoint.agreement import Exchange
from accelkit.runtime.checkpoint.parts import Part
from accelkit.runtime.checkpoint.saving import Job, Save

_PATIENCE: Final = timedelta(hours=6)
"""How long a rank waits for the slowest writer. One that dies is noticed at once."""


class Buffers:
    """Memory for copies of tensors, kept from save to save: fresh memory is several times slower to fill."""

    def __init__(self) -> None:
        self._by_key: dict[Any, torch.Tensor] = {}
        self._moving = False

    def snapshot(self, parts: Sequence[Part]) -> list[Part]:
        """Parts with the same content, which training does not change any more. The next snapshot overwrites it."""
        self._moving = False
        taken = [part.snapshot(self._keep) for part in parts]
        if self._moving and torch.accelerator.is_available():
            torch.accelerator.synchronize()
        return taken

    def _keep(self, key: Any, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach()
        if tensor.layout != torch.strided:
            return tensor.to("cpu", copy=True)
        buffer = self._by_key.get(key)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            pinned = tensor.device.type == "cuda"
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=pinned)
            self._by_key[key] = buffer
        buffer.copy_(tensor, non_blocking=True)
        self._moving = self._moving or tensor.device.type != "cpu"
        return buffer


class SaveHandle:
    """A checkpoint that is being written while training goes on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        """Where the checkpoint appears when it is complete."""
        self.error: Exception | None = None
        self._done = threading.Event()
        self._is_told = False

    @property
    def done(self) -> bool:
        """Whether it is complete, or has failed."""
        return self._done.is_set()

    def wait(self, timeout: float | None = None) -> Path:
        """Return the checkpoint's path when it is complete; raises what went wrong, once.

        Raises TimeoutError when it is neither complete nor failed after `timeout` seconds.
        """
        if not self._done.wait(timeout):
            raise TimeoutError(f"{self.path} is not complete after {timeout} seconds")
        if self.error is not None and not self._is_told:
            self._is_told = True
            raise self.error
        return self.path

    def _finish(self, error: Exception | None) -> None:
        self.error = error
        self._done.set()

    def _tell_at_exit(self) -> None:
        """The last chance to hear of a failure that nobody waited for."""
        if self.error is not None and not self._is_told:
            sys.stderr.write(f"accelkit: the checkpoint {self.path} was not saved: {self.error}\n")


class BackgroundSaver:
    """At most one save at a time beside training."""

    def __init__(self, size: int) -> None:
        """`size`: ranks of the run."""
        self._size = size
        self._group: Any = None
        self._buffers = Buffers()
        self._current: SaveHandle | None = None

    def snapshot(self, parts: Sequence[Part]) -> list[Part]:
        """Copies of parts. Only after :meth:`wait`."""
        return self._buffers.snapshot(parts)

    def start(self, save: Save, job: Job) -> SaveHandle:
        """Write beside training. All ranks call it, in the same order. The process's end waits for the thread."""
        exchange = self._exchange()
        handle = SaveHandle(save.target)

        def work() -> None:
            error: Exception | None = None
            try:
                save.run(job, exchange, digest.Inline())
            except Exception as failure:  # noqa: BLE001  (raised by whoever waits)
                error = failure
            handle._finish(error)  # noqa: SLF001  (this module's own)

        self._current = handle
        atexit.register(handle._tell_at_exit)  # noqa: SLF001
        threading.Thread(target=work, name="accelkit-checkpoint").start()
        return handle

    def wait(self) -> None:
        """Return when no save is under way, whoever else waits for it; raises what went wrong with the last one, once."""
        current = self._current
        if current is None:
            return
        try:
            current.wait()
        finally:
            if current.done and self._current is current:
                self._current = None
                atexit.unregister(current._tell_at_exit)  # noqa: SLF001

    def _exchange(self) -> Exchange:
        """Ranks agree over a group of their own, so that training's operations and theirs cannot meet."""
        if self._size == 1:
            return lambda value: [value]
        if self._group is None:
            self._group = dist.new_group(backend="gloo", timeout=_PATIENCE)
        group = self._group

        def exchange(value: Any) -> list[Any]:
            found: list[Any] = [None] * self._size
            dist.all_gather_object(found, value, group=group)
            return found

        return exchange
