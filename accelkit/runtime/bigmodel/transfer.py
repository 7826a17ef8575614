"""Copying ahead: while a module computes on an accelerator, the next one's weights travel to it.

A thread copies the weights of the next module into pinned memory, and from there to the device on a stream of its own. The
stream that computes waits for that copy alone. At most two modules' weights are on the device: the one that runs, the next one.
"""

import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any, Final

import torch

from accelkit.runtime.bigmodel.prefetch import Order
from accelkit.runtime.bigmodel.tensors import version_of

Signature = list[tuple[int, int]]

_ALIGNMENT: Final = 256
_copies_lock: Final = threading.Lock()


class PlainCopies:
    """Copies without streams: for devices that have none."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def send(self, homes: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Begin to copy."""
        return [home.to(self.device, copy=True) for home in homes]

    def receive(self, sent: list[torch.Tensor]) -> list[torch.Tensor]:
        """Make what was sent usable by this thread's computation."""
        return sent


class StreamedCopies:
    """Copies through pinned memory on a stream of their own (CUDA, ROCm, XPU)."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._module: Any = torch.get_device_module(device)
        self._stream = self._module.Stream(device)
        self._staging: list[torch.Tensor] = [torch.empty(0, dtype=torch.uint8)] * 2
        self._free: list[Any] = [None, None]
        self._turn = 0
        self._lock = threading.Lock()

    def send(self, homes: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], Any]:
        """Copy to pinned memory now, and from there to the device in the background."""
        with self._lock:
            return self._send(homes)

    def _send(self, homes: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], Any]:
        self._turn = 1 - self._turn
        staging = self._staging_for(sum(_padded(home) for home in homes))
        sent, start = [], 0
        with self._module.device(self.device), self._module.stream(self._stream):
            for home in homes:
                size = home.numel() * home.element_size()
                pinned = staging[start : start + size].view(home.dtype).view(home.shape)
                pinned.copy_(home)
                sent.append(torch.empty_like(pinned, device=self.device).copy_(pinned, non_blocking=True))
                start += _padded(home)
            arrived = self._module.Event()
            arrived.record(self._stream)
        self._free[self._turn] = arrived
        return sent, arrived

    def receive(self, sent: tuple[list[torch.Tensor], Any]) -> list[torch.Tensor]:
        """Make this thread's stream wait for the copy, and keep the memory until that stream is done with it."""
        tensors, arrived = sent
        stream = self._module.current_stream(self.device)
        stream.wait_event(arrived)
        for tensor in tensors:
            tensor.record_stream(stream)
        return tensors

    def _staging_for(self, size: int) -> torch.Tensor:
        """This turn's pinned memory, once the copy that used it last is done."""
        if self._free[self._turn] is not None:
            self._free[self._turn].synchronize()
        if self._staging[self._turn].numel() < size:
            self._staging[self._turn] = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        return self._staging[self._turn]


def _padded(tensor: torch.Tensor) -> int:
    return -(-tensor.numel() * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT


class Transfer:
    """Brings the offloaded weights of one model to the devices they run on, a module ahead.

    Args:
        devices: key -> the device that module runs on; in the order of the model.
    """

    def __init__(self, devices: Mapping[str, torch.device]) -> None:
        self._devices = dict(devices)
        self._order = Order(list(devices))
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._coming: dict[str, tuple[Signature, Future[Any]]] = {}
        self._copies: dict[torch.device, Any] = {}
        self._homes: dict[str, list[torch.Tensor]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_devices": self._devices, "_order": self._order}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def start(self) -> None:
        """See Feed."""

    def finish(self) -> None:
        """See Feed: nothing is kept over to the next forward, before which weights may be changed."""
        with self._lock:
            self._coming = {}

    def enter(self, key: str) -> None:
        """See Feed."""
        self._order.seen(key)

    def take(self, key: str, homes: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """See Feed. Begins with the module that is expected next."""
        device = self._devices[key]
        with self._lock:
            self._homes[key] = list(homes)
            signature, coming = self._coming.pop(key, (None, None))
        sent = coming.result() if coming is not None and signature == _signature(homes) else self._send(homes, device)
        following = next(self._order.after(key), None)
        if following is not None:
            self._begin(following)
        received: list[torch.Tensor] = self._copies_of(device).receive(sent)
        return received

    def leave(self, key: str) -> None:
        """See Feed."""

    def expect(self, key: str, homes: Sequence[torch.Tensor]) -> None:
        """Tell what a module's tensors are, so that they can travel before it runs for the first time."""
        with self._lock:
            self._homes[key] = list(homes)

    def _begin(self, key: str) -> None:
        """Send one module ahead; whatever else was sent and not used is let go."""
        with self._lock:
            homes = self._homes.get(key)
            if key in self._coming or homes is None:
                return
            future = _pool().submit(self._send, homes, self._devices[key])
            self._coming = {key: (_signature(homes), future)}

    def _send(self, homes: Sequence[torch.Tensor], device: torch.device) -> Any:
        return self._copies_of(device).send(homes)

    def _copies_of(self, device: torch.device) -> Any:
        with _copies_lock:
            if device not in self._copies:
                streamed = device.type in ("cuda", "xpu")
                self._copies[device] = StreamedCopies(device) if streamed else PlainCopies(device)
            return self._copies[device]


def _signature(homes: Sequence[torch.Tensor]) -> Signature:
    """Changes when a tensor is replaced or written to."""
    return [(home.data_ptr(), version_of(home)) for home in homes]


@cache
def _pool_of(_process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="accelkit-transfer")


def _pool() -> ThreadPoolExecutor:
    """The one thread of this process (not of the one it was forked from) that sends."""
    return _pool_of(os.getpid())
