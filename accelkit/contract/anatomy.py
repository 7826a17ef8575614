"""What a model consists of: its tensors, and the layers that stay whole when it is spread over devices.

Found from a built model where there is torch, and from names alone where there is a checkpoint only.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from accelkit.contract.data import data
from accelkit.contract.placement import Unit

FILE: Final = "anatomy.json"
"""Its file in a run's exchange folder."""


@data
class TensorPart:
    """One tensor, under the first of its names."""

    name: str
    layers: tuple[str, ...]
    """The layers that hold it; several hold one that is tied."""
    dtype: str
    """As torch spells it, without `torch.`."""
    count: int
    """Values."""
    bytes: int
    is_trained: bool = True
    """Whether it is a parameter; buffers have no gradients."""

    @property
    def is_floating(self) -> bool:
        """Whether it is loaded in the dtype that is asked for."""
        return "float" in self.dtype


@data
class Anatomy:
    """A model, in the order in which it runs."""

    source: str
    """One line: how it was found."""
    tensors: tuple[TensorPart, ...]
    guessed: bool = False
    """Whether layers and order were taken from names."""

    @property
    def parameters(self) -> int:
        """Values of all tensors that are trained."""
        return sum(part.count for part in self.tensors if part.is_trained)


_NUMBER: Final = re.compile(r"\d+")
_LAST: Final = re.compile(r"head|classifier|score|predict|output")
_EARLY: Final = re.compile(r"embed|\bwte\b|\bwpe\b|shared|patch|conv_?in|stem|token")


def from_names(source: str, tensors: Mapping[str, tuple[str, int, int]]) -> Anatomy:
    """The anatomy that names tell: (dtype, values, bytes) of each tensor.

    A layer is what lies under the first number in a name (`model.layers.3`), else the module of the tensor. Embeddings come
    first, then numbered layers in the order of their numbers, then the rest, heads last.
    """
    ordered = sorted(tensors, key=_position)
    parts = [
        TensorPart(name=name, layers=(layer_of(name),), dtype=dtype, count=count, bytes=size)
        for name in ordered
        for dtype, count, size in [tensors[name]]
    ]
    return Anatomy(source=source, tensors=tuple(parts), guessed=True)


def layer_of(name: str) -> str:
    """The layer of a tensor, by its name."""
    words = name.split(".")
    for place, word in enumerate(words[:-1]):
        if _NUMBER.fullmatch(word):
            return ".".join(words[: place + 1])
    return ".".join(words[:-1]) or name


def _position(name: str) -> tuple[int, list[tuple[int, str]]]:
    layer = layer_of(name)
    numbered = _NUMBER.fullmatch(layer.rpartition(".")[2]) is not None
    group = 1 if numbered else 0 if _EARLY.search(layer) else 3 if _LAST.search(layer) else 2
    words = name.replace("decoder", "~decoder").split(".")  # an encoder runs before its decoder
    return group, [(int(word) if word.isdigit() else -1, word) for word in words]


def units(anatomy: Anatomy, sizes: Sequence[int]) -> list[Unit]:
    """What is placed as a whole, in order; `sizes` are the bytes of each tensor as it is loaded."""
    held: dict[str, dict[int, int]] = {}
    for number, (part, size) in enumerate(zip(anatomy.tensors, sizes, strict=True)):
        for layer in part.layers:
            held.setdefault(layer, {})[number] = size
    return [Unit(layer, tensors) for layer, tensors in held.items()]
