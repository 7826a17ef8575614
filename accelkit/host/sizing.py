"""The memory that training a model takes on each rank, by rules: what `kit plan` prints. Pure arithmetic, in bytes.

The rules, for P parameters of which b are in the largest wrapped module and R in none, N shards, s bytes a parameter as it is kept,
c as it is computed with, r as gradients are summed (4 with mixed precision):

    parameters, gradients   s P each, divided by N under fsdp
    optimizer               AdamW 2 s P, SGD with momentum s P, SGD nothing; divided by N
    buckets (ddp)           s P, always there; gradients that lie in them (gradient_as_bucket_view) take nothing else
    work of a step          AdamW: three tensors of the size of the largest parameter (its part)
    gathered (fsdp)         R c, and for wrapped modules (5 c + 3 r) b: two modules gathered and unpacked, a module's gradients, two
                            modules' gradients on their way; or 2 r R at the end of backward, if that is more. Modules that are kept
                            until backward (no reshard): all of them in c, and (2 c + 3 r) b
    activations             17 values a token, hidden unit and layer (attention that keeps no matrix of scores, a perceptron four times as
                            wide), in c; recomputed: one, and one layer's 17

Gradients grow while activations go, so the peak has the larger of the two. Memory of Python, torch's code (0.2 to 0.4 GB a rank), of
the backend and fragmentation come on top.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from accelkit.contract.data import data
from accelkit.host.errors import UsageError

OPTIMIZERS: Final = {"adamw": (2, 3), "adam": (2, 3), "sgd-momentum": (1, 1), "sgd": (0, 0)}
"""Name -> (tensors kept, tensors while stepping) a parameter."""
PER_LAYER: Final = 17
COMPUTED: Final = {"no": None, "bf16": 2, "fp16": 2}
"""Precision -> bytes of a value computed with; None: as it is kept."""


@data
class Shape:
    """What a model is, as far as its memory depends on it. Counts of parameters."""

    parameters: int
    largest: int
    """In the largest parameter."""
    blocks: tuple[int, ...] = ()
    """In each repeated block."""
    hidden: int = 0
    """Width of what goes from block to block; 0: activations are left out."""

    @property
    def rest(self) -> int:
        """Outside the blocks."""
        return self.parameters - sum(self.blocks)


@data
class Setting:
    """How it is trained."""

    shards: int = 1
    """Ranks among which a copy of the model is divided by fsdp."""
    tp: int = 1
    """Ranks that share each layer."""
    kept: int = 4
    """Bytes of a parameter."""
    precision: str = "no"
    optimizer: str = "adamw"
    tokens: int = 0
    """In a rank's micro-batch; 0: activations are left out."""
    wraps: bool = True
    """Blocks are gathered by themselves."""
    reshards: bool = True
    recomputes: bool = False
    bucket_view: bool = False


@data
class Need:
    """Bytes on a rank."""

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    buckets: int = 0
    step: int = 0
    gathered: int = 0
    activations: int = 0

    @property
    def peak(self) -> int:
        """The most at any time of a training step."""
        always = self.parameters + self.optimizer + self.buckets
        return always + max(self.gathered + max(self.gradients, self.activations), self.gradients + self.step)


def need(shape: Shape, setting: Setting, strategy: str) -> Need:
    """What a rank needs under "single", "ddp" or "fsdp". Raises UsageError for a name that is none of those in the tables here."""
    if (
        setting.optimizer not in OPTIMIZERS
        or setting.precision not in COMPUTED
        or strategy not in ("single", "ddp", "fsdp")
    ):
        known = (
            f"optimizers are {', '.join(OPTIMIZERS)}; precisions {', '.join(COMPUTED)}; strategies single, ddp, fsdp"
        )
        raise UsageError(f"plan: {setting.optimizer}, {setting.precision}, {strategy}: not all known", hint=known)
    shards = setting.shards if strategy == "fsdp" else 1
    kept, working = OPTIMIZERS[setting.optimizer]
    part = math.ceil(shape.parameters / (shards * setting.tp)) * setting.kept
    found = Need(
        parameters=part,
        gradients=0 if strategy == "ddp" and setting.bucket_view else part,
        optimizer=kept * part,
        buckets=part if strategy == "ddp" else 0,
        step=working * setting.kept * math.ceil(shape.largest / (shards * setting.tp)),
        activations=_activations(shape, setting),
    )
    return _with_gathered(found, shape, setting) if strategy == "fsdp" else found


def _computed(setting: Setting) -> int:
    return COMPUTED[setting.precision] or setting.kept


def _activations(shape: Shape, setting: Setting) -> int:
    layers, unit = len(shape.blocks), setting.tokens * shape.hidden * _computed(setting)
    return unit * (layers + PER_LAYER if setting.recomputes else layers * PER_LAYER)


def _with_gathered(found: Need, shape: Shape, setting: Setting) -> Need:
    computed, summed = _computed(setting), 4 if setting.precision != "no" else setting.kept
    blocks = [block / setting.tp for block in shape.blocks] if setting.wraps else []
    rest, largest = shape.parameters / setting.tp - sum(blocks), max(blocks, default=0)
    if setting.reshards:
        return replace(
            found, gathered=int(max(rest * computed + largest * (5 * computed + 3 * summed), 2 * summed * rest))
        )
    kept = (rest + sum(blocks)) * computed + largest * (2 * computed + 3 * summed)
    gathered = max(
        int(kept) - found.gradients, int(2 * summed * rest)
    )  # at the beginning of backward there are no gradients
    return replace(found, gathered=gathered)


def shape_of(tensors: Mapping[str, tuple[int, ...]]) -> Shape:
    """A model's shape from the names and shapes of its tensors: blocks are what differs in the first number in the name."""
    counts = {name: math.prod(shape) for name, shape in tensors.items()}
    blocks: dict[str, int] = {}
    for name, count in counts.items():
        parts = name.split(".")
        place = next((index for index, word in enumerate(parts) if word.isdigit()), None)
        if place is not None:
            key = ".".join(parts[: place + 1])
            blocks[key] = blocks.get(key, 0) + count
    vectors = [shape[0] for name, shape in tensors.items() if len(shape) == 1]
    hidden = max(set(vectors), key=vectors.count) if vectors else 0
    return Shape(
        parameters=sum(counts.values()),
        largest=max(counts.values(), default=0),
        blocks=tuple(blocks.values()),
        hidden=hidden,
    )
