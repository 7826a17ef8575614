"""Safetensors files as tensors: views of the mapped file, or copies."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

import torch

from accelkit.contract import safetensors_layout
from accelkit.contract.safetensors_layout import TORCH_NAMES, LayoutError
from accelkit.runtime.bigmodel.failures import CheckpointFileError
from accelkit.runtime.bigmodel.mapping import MappedFile, read_copy

DTYPES: Final[dict[str, torch.dtype]] = {
    code: getattr(torch, name) for code, name in TORCH_NAMES.items() if hasattr(torch, name)
}
"""Of those that this torch has."""
_OTHER_FRAMEWORKS: Final = ("tf", "flax", "jax", "paddle")


@contextmanager
def checking() -> Iterator[None]:
    """What is wrong with a file in this block is a CheckpointFileError."""
    try:
        yield
    except LayoutError as error:
        raise CheckpointFileError(str(error)) from error.__cause__


@dataclass(frozen=True)
class Span:
    """One tensor in the file: offset from the file's start, in bytes."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """Bytes."""
        return prod(self.shape) * self.dtype.itemsize


class SafetensorsFile:
    """One file. Making it maps the file and reads and checks its header; tensors are views of it, or copies.

    Raises CheckpointFileError for a file that is cut short, or whose header is no header, lies about sizes, or names a tensor twice.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = MappedFile(path)
        except OSError as error:
            raise CheckpointFileError(f"{path} cannot be read: {error.strerror or error}") from error
        with checking():
            layout = safetensors_layout.parse(path, self._file.size, _Reader(self._file))
        self.metadata = dict(layout.metadata)
        self._check_framework()
        unknown = sorted({entry.dtype for entry in layout.tensors.values()} - DTYPES.keys())
        if unknown:
            raise CheckpointFileError(
                f"{path} holds {', '.join(unknown)}, which torch {torch.__version__} does not have"
            )
        self.spans = {
            name: Span(DTYPES[entry.dtype], entry.shape, entry.offset) for name, entry in layout.tensors.items()
        }

    def view(self, name: str) -> torch.Tensor:
        """A tensor as a view of the mapped file."""
        span = self.spans[name]
        return self._file.tensor(span.offset, span.dtype, span.shape)

    def is_mapped(self, name: str) -> bool:
        """Whether `view` costs nothing: a tensor that lies at an odd place for its dtype is copied there too."""
        span = self.spans[name]
        return span.offset % span.dtype.itemsize == 0

    def copy(self, name: str) -> torch.Tensor:
        """A tensor in memory of its own."""
        span = self.spans[name]
        return read_copy(self.path, span.offset, span.dtype, span.shape)

    def _check_framework(self) -> None:
        framework = self.metadata.get("format")
        if framework in _OTHER_FRAMEWORKS:
            raise CheckpointFileError(
                f"{self.path} was written for {framework!r}, whose weights are laid out in another way",
                hint="use the checkpoint for PyTorch (format 'pt')",
            )


class _Reader:
    """Reads a mapped file from its start on."""

    def __init__(self, file: MappedFile) -> None:
        self._file = file
        self._at = 0

    def __call__(self, count: int) -> bytes:
        self._at += count
        return self._file.read(self._at - count, count)


def load_json(path: Path) -> Any:
    """A JSON file in which no key stands twice. Raises CheckpointFileError that names the file."""
    with checking():
        return safetensors_layout.load_json(path)
