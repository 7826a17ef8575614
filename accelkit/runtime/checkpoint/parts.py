"""What a checkpoint is made of: the objects whose state it holds, and each file's content before it is written."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from accelkit.runtime import rng, structure
from accelkit.runtime.checkpoint import names, objectfile, tensorfile
from accelkit.runtime.checkpoint.digest import DigestingFile
from accelkit.runtime.errors import UnsupportedError
from accelkit.runtime.strategies.base import Strategy

Keep = Callable[[Any, torch.Tensor], torch.Tensor]
"""Makes the copy of a tensor that is remembered under a key."""


@dataclass(frozen=True, kw_only=True)
class Subjects:
    """The objects of a run whose state is saved and loaded."""

    strategy: Strategy
    models: Sequence[Any]
    optimizers: Sequence[Any]
    schedulers: Sequence[Any]
    loaders: Sequence[Any]
    """Those with a `state_dict` and `load_state_dict` have a state."""
    scaler: Any
    """The loss scaler, or None."""
    custom: Sequence[Any]
    device: torch.device
    rank: int

    @property
    def counts(self) -> dict[str, int]:
        """How many there are of each kind."""
        return {
            "models": len(self.models),
            "optimizers": len(self.optimizers),
            "schedulers": len(self.schedulers),
            "loaders": len(self.loaders),
            "scalers": int(self.scaler is not None),
            "custom": len(self.custom),
        }


class Part(Protocol):
    """One file of a checkpoint."""

    @property
    def name(self) -> str:
        """Of the file."""

    def write(self, file: DigestingFile) -> None:
        """Write the content."""

    def snapshot(self, keep: Keep) -> "Part":
        """The same content, in memory that nothing else changes."""


@dataclass(frozen=True)
class TensorPart:
    """Tensors by name, in the safetensors format."""

    name: str
    tensors: Mapping[str, torch.Tensor]
    aliases: Mapping[str, str]

    def write(self, file: DigestingFile) -> None:
        """Write the tensors from where they lie."""
        tensorfile.write(file, self.tensors, self.aliases)

    def snapshot(self, keep: Keep) -> "TensorPart":
        """With copies of the tensors."""
        kept = {
            name: keep((self.name, name), tensor) for name, tensor in self.tensors.items() if name not in self.aliases
        }
        return TensorPart(self.name, kept, self.aliases)


@dataclass(frozen=True)
class ObjectPart:
    """Any object, in torch's format."""

    name: str
    value: Any

    def write(self, file: DigestingFile) -> None:
        """Write the object."""
        objectfile.write(file, self.value)

    def snapshot(self, keep: Keep) -> "ObjectPart":
        """With copies of the tensors and of everything that can change."""
        seen: dict[int, torch.Tensor] = {}

        def copied(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return copy.deepcopy(leaf)
            if id(leaf) not in seen:
                seen[id(leaf)] = keep((self.name, len(seen)), leaf)
            return seen[id(leaf)]

        return ObjectPart(self.name, structure.map_leaves(copied, self.value))


def model_parts(weights: Sequence[Mapping[str, Any]], divided: Sequence[bool], *, safe: bool) -> list[Part]:
    """The files of the models' states. `divided`: whose tensors all ranks write elsewhere."""
    parts: list[Part] = []
    for index, state in enumerate(weights):
        _refuse_meta(state)
        tensors = {name: value for name, value in state.items() if safe and tensorfile.fits(value)}
        others = {name: value for name, value in state.items() if name not in tensors}
        if safe and not divided[index]:
            parts.append(TensorPart(names.model(index), tensors, tensorfile.find_aliases(tensors)))
        if others:
            parts.append(
                ObjectPart(
                    names.model_extra(index) if safe or divided[index] else names.model(index, safe=False), others
                )
            )
    return parts


def _refuse_meta(state: Mapping[str, Any]) -> None:
    for name, value in state.items():
        if isinstance(value, torch.Tensor) and value.is_meta:
            raise UnsupportedError(
                f"{name} is on the meta device: it has a shape but no values to save",
                hint="load the model's weights before saving it",
            )


def other_parts(subjects: Subjects, optimizers: Sequence[Any]) -> list[Part]:
    """The files of everything else that all ranks have alike. `optimizers`: their states."""
    parts: list[Part] = [ObjectPart(names.optimizer(index), state) for index, state in enumerate(optimizers)]
    parts += [ObjectPart(names.scheduler(i), one.state_dict()) for i, one in enumerate(subjects.schedulers)]
    parts += [
        ObjectPart(names.loader(index), _state_of_loader(one, subjects.loaders))
        for index, one in enumerate(subjects.loaders)
        if has_state(one)
    ]
    if subjects.scaler is not None:
        parts.append(ObjectPart(names.SCALER_NAME, subjects.scaler.state_dict()))
    parts += [ObjectPart(names.custom(i), one.state_dict()) for i, one in enumerate(subjects.custom)]
    return parts


def _state_of_loader(loader: Any, loaders: Sequence[Any]) -> Any:
    """Where a loader is. A loop that was left and has trained nothing, where those of others train, is validation, and over."""
    if not loader.trains and any(other.trains for other in loaders):
        return loader.state_dict(left_is_over=True)
    return loader.state_dict()


def rank_part(subjects: Subjects, step: int) -> Part:
    """The file of what each rank has for itself."""
    return ObjectPart(names.rank(subjects.rank), {"step": step, **rng.capture(subjects.device)})


def has_state(candidate: Any) -> bool:
    """Whether an object can say where it is and be put there again."""
    return all(callable(getattr(candidate, name, None)) for name in ("state_dict", "load_state_dict"))
