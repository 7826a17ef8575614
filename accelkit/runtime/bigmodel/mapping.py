"""Files as memory: tensors that are views of a file, and advice to the kernel about when they are needed.

A mapped tensor costs no read until it is used and no second copy in memory; its pages are the page cache's. Writing to it
changes this process's copy of the page alone, never the file.

A file that is made shorter while it is mapped kills the process with SIGBUS when the lost part is used. Where files may
change under a run, copy instead.
"""

import ctypes
import mmap
import os
import threading
import weakref
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from accelkit.runtime.bigmodel.failures import CheckpointFileError

PAGE: Final = mmap.PAGESIZE
_NO_RESERVE: Final = getattr(mmap, "MAP_NORESERVE", 0x4000)
_WILL_NEED: Final = 3
_DONT_NEED: Final = 4
_POPULATE_READ: Final = 22


class MappedFile:
    """One file, mapped as a whole. It stays mapped for as long as this or any tensor made of it is there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            self.size = os.fstat(file.fileno()).st_size
            if not self.size:
                raise CheckpointFileError(f"{path} is empty")
            protection = mmap.PROT_READ | mmap.PROT_WRITE
            flags = mmap.MAP_PRIVATE | _NO_RESERVE
            self._memory = mmap.mmap(file.fileno(), self.size, flags=flags, prot=protection)
        self._address: int = torch.frombuffer(self._memory, dtype=torch.uint8).data_ptr()
        _live.add(self._address, self.size, self._memory)

    def read(self, offset: int, count: int) -> bytes:
        """Some bytes, copied."""
        return self._memory[offset : offset + count]

    def tensor(self, offset: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        """The values at an offset, as a view; a copy where the offset does not suit the dtype."""
        count = prod(shape)
        if not count:
            return torch.empty(shape, dtype=dtype)
        if offset % dtype.itemsize:
            raw = torch.frombuffer(self._memory, dtype=torch.uint8, count=count * dtype.itemsize, offset=offset)
            return raw.clone().view(dtype).view(shape)
        return torch.frombuffer(self._memory, dtype=dtype, count=count, offset=offset).view(shape)


@dataclass(frozen=True)
class Region:
    """Memory that is backed by a file. The owner keeps it mapped, so that advice never hits what came after it."""

    address: int
    size: int
    owner: Any

    def will_need(self) -> None:
        """Begin to read it from the disk."""
        _advise(self._outer(), _WILL_NEED)

    def make_ready(self) -> None:
        """Read it and enter its pages into this process; returns when they are there."""
        _advise(self._outer(), _POPULATE_READ)

    def drop(self) -> bool:
        """Take its pages out of this process, unless some were written to (they exist nowhere else)."""
        address, size = self._inner()
        if size and not _has_private_pages(address, size):
            _advise((address, size), _DONT_NEED)
            return True
        return False

    def _outer(self) -> tuple[int, int]:
        start = self.address // PAGE * PAGE
        return start, -(-(self.address + self.size) // PAGE) * PAGE - start

    def _inner(self) -> tuple[int, int]:
        start = -(-self.address // PAGE) * PAGE
        return start, max(0, (self.address + self.size) // PAGE * PAGE - start)


def region_of(tensor: torch.Tensor) -> Region | None:
    """The file-backed memory of a tensor; None for one that is not a view of a mapped file."""
    if nn.parameter.is_lazy(tensor) or not has_plain_memory(tensor):
        return None
    tensor = tensor.detach()
    if tensor.device.type != "cpu" or not tensor.numel() or type(tensor).__torch_dispatch__ is not _plain_dispatch:
        return None
    address, size = tensor.data_ptr(), tensor.numel() * tensor.element_size()
    owner = _live.owner(address)
    return None if owner is None else Region(address, size, owner)


def has_plain_memory(tensor: torch.Tensor) -> bool:
    """Whether its memory is its values and nothing else: not so for sparse and quantized tensors, which no dtype and shape describe."""
    return tensor.layout is torch.strided and not tensor.is_quantized


def remapped(tensor: torch.Tensor, file: MappedFile) -> torch.Tensor:
    """The same values as a view of `file`, for a tensor that somebody else mapped from it; where that is unknown, itself."""
    if (
        not has_plain_memory(tensor)
        or not tensor.numel()
        or not tensor.is_contiguous()
        or tensor.is_conj()
        or tensor.is_neg()
    ):
        return tensor
    offset = _offset_in_file(tensor.data_ptr())
    if offset is None or offset + tensor.numel() * tensor.element_size() > file.size:
        return tensor
    return file.tensor(offset, tensor.dtype, tuple(tensor.shape))


def _offset_in_file(address: int) -> int | None:
    """Where in its file an address of this process is; None when no file is there, or the system does not tell."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        span, _, offset, _, inode, *_ = line.split()
        start, _, end = span.partition("-")
        if int(start, 16) <= address < int(end, 16):
            return int(offset, 16) + address - int(start, 16) if inode != "0" else None
    return None


def merged(regions: Iterable[Region]) -> list[Region]:
    """The same memory in as few regions as it takes: neighbours of one owner become one."""
    result: list[Region] = []
    for region in sorted(regions, key=lambda region: region.address):
        last = result[-1] if result else None
        if last is not None and last.owner is region.owner and region.address <= last.address + last.size + PAGE:
            end = max(last.address + last.size, region.address + region.size)
            result[-1] = Region(last.address, end - last.address, last.owner)
        else:
            result.append(region)
    return result


def read_copy(path: Path, offset: int, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Values of a file in memory of their own. Raises CheckpointFileError when the file ends before them."""
    made = torch.empty(shape, dtype=dtype)
    size = made.numel() * made.element_size()
    if not size:
        return made
    target = memoryview((ctypes.c_char * size).from_address(made.data_ptr())).cast("B")
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        done = 0
        while done < size:
            count = file.readinto(target[done : done + (64 << 20)])
            if not count:
                raise CheckpointFileError(f"{path} ends {size - done} bytes too early: it changed while it was read")
            done += count
    return made


class _Live:
    """The mappings that exist, by address."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._starts: list[int] = []
        self._spans: dict[int, tuple[int, weakref.ref[mmap.mmap]]] = {}

    def add(self, address: int, size: int, memory: mmap.mmap) -> None:
        with self._lock:
            known = {start: span for start, span in self._spans.items() if span[1]() is not None}
            known[address] = (address + size, weakref.ref(memory))
            self._spans = known
            self._starts = sorted(known)

    def owner(self, address: int) -> mmap.mmap | None:
        with self._lock:
            position = bisect_right(self._starts, address) - 1
            if position < 0:
                return None
            end, memory = self._spans[self._starts[position]]
        return memory() if address < end else None


_live: Final = _Live()
_plain_dispatch: Final = torch.Tensor.__torch_dispatch__


def _load_madvise() -> Any:
    """The C function, through ctypes since it lets other threads run meanwhile; None where there is none."""
    try:
        function = ctypes.CDLL(None, use_errno=True).madvise
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function


_madvise: Final = _load_madvise()


def _advise(span: tuple[int, int], advice: int) -> None:
    """Advice only: a kernel that does not know it is left alone."""
    if _madvise is not None and span[1]:
        _madvise(span[0], span[1], advice)


def _has_private_pages(address: int, size: int) -> bool:
    """Whether this process wrote to any page; also true where that cannot be known."""
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as pages:
            pages.seek(address // PAGE * 8)
            raw = bytearray(pages.read(size // PAGE * 8))
    except OSError:
        return True
    if len(raw) != size // PAGE * 8:
        return True
    entries = torch.frombuffer(raw, dtype=torch.int64)
    of_file = (entries >> 61) & 1
    in_memory_or_swap = (entries < 0) | ((entries >> 62) & 1).bool()
    return bool((in_memory_or_swap & (of_file == 0)).any())
