"""The seam between the facade and a way of training on several ranks: a strategy is asked to act, never what it is."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import nn

from accelkit.runtime import models
from accelkit.runtime.settings import DistributedType, Handlers
from accelkit.runtime.state import PartialState

Move = Callable[[Any], Any]
"""Gives a batch, elsewhere."""
NOTHING: AbstractContextManager[None] = nullcontext()
"""A block that does nothing, to be entered any number of times."""


class Steps(Protocol):
    """What steps in the place of an optimizer."""

    def step(self) -> bool:
        """One step; whether it took place."""

    def zero_grad(self) -> None:
        """Let go of gradients that no step has used."""


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a strategy takes over from the facade."""

    owns_loss_scaling: bool = False
    """The precision's scaler is not used."""
    owns_accumulation: bool = False
    """Losses are not divided by the number of micro-batches."""
    moves_models: bool = True
    """Models are put on the device before they are wrapped."""
    shards: bool = False
    """Parameters become parts of themselves, in place."""


class Strategy(ABC):
    """One way of training on the ranks of a run."""

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities] = Capabilities()

    plugin: Any = None
    """The plug-in in force; None where the strategy has none."""
    parallelism: Any = None
    """The layout of ranks (`ParallelismConfig`); None where they are in one dimension."""
    mesh: Any = None
    """The mesh of that layout."""

    def __init__(self, state: PartialState, handlers: Handlers, dtype: torch.dtype | None = None) -> None:
        """Args: `dtype`, what models compute in under mixed precision; None: as they are."""
        self.state = state
        self.handlers = handlers
        self.dtype = dtype

    @property
    def distributed_type(self) -> DistributedType:
        """How scripts know this way of training."""
        return self.state.distributed_type

    @property
    def saves_shards(self) -> bool:
        """Whether each rank writes its part of models and optimizers into checkpoints, not rank 0 the whole."""
        return False

    @property
    def data_size(self) -> int:
        """Shares into which data is divided: one a rank, unless ranks work on one batch together."""
        found: int = self.parallelism.data_parallel_size if self.parallelism is not None else self.state.num_processes
        return found

    @property
    def data_rank(self) -> int:
        """Which share this rank has."""
        return self.share_of(self.state.process_index)

    def share_of(self, rank: int) -> int:
        """Which share of the data a rank has."""
        found: int = self.parallelism.share_of(rank) if self.parallelism is not None else rank
        return found

    @abstractmethod
    def wrap(self, model: nn.Module) -> nn.Module:
        """The model that the script calls; the argument itself where nothing has to be done."""

    def unwrap(self, model: nn.Module) -> nn.Module:
        """The inverse of :meth:`wrap`: exactly the object that was wrapped."""
        return model

    def adopt(self, optimizer: torch.optim.Optimizer) -> Steps | None:
        """Take note of an optimizer that is being prepared. Its model may have been wrapped before, or will be later.

        Returns what steps in its place; None: it does itself.
        """
        return None

    def note_loader(self, batch_size: int | None) -> None:
        """Take note of a loader that is being prepared, by the size of this rank's batches (None: it has none)."""
        return

    def note_scheduler(self, scheduler: Any, repeats: int) -> None:
        """Take note of a schedule that is being prepared; `repeats`: steps of one process's loop that a step of this run is."""
        return

    def mover(self, move: Move | None) -> Move | None:
        """What is done to each batch of a prepared loader, given what puts it on the device; None for nothing."""
        return move

    def complete(self) -> None:
        """Everything that one call prepares is there. All ranks call it."""
        return

    def forget(self) -> None:
        """Let go of what was prepared."""
        return

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Gradients of a loss that is scaled already, where this side scales it."""
        loss.backward(**kwargs)  # type: ignore[no-untyped-call]

    def no_sync(self, models: Iterable[nn.Module]) -> AbstractContextManager[Any]:
        """A block in which backward leaves gradients unsynchronised."""
        return NOTHING

    def sync_in_backward(self, model: nn.Module) -> AbstractContextManager[Any]:
        """A block in which backward synchronises gradients although the forward ran in a block of :meth:`no_sync`."""
        return NOTHING

    def join(
        self, models: Sequence[nn.Module], *, enable: bool, complete: Callable[[], None] | None = None
    ) -> AbstractContextManager[Any]:
        """A block in which ranks may run out of batches at different times.

        `complete` ends this rank's accumulation window, where gradients are accumulated: called when another rank ends its own.
        """
        return NOTHING

    def grad_norm(self, parameters: Sequence[torch.Tensor], norm_type: float) -> torch.Tensor:
        """The common norm of the gradients that are there."""
        return nn.utils.get_total_norm([one.grad for one in parameters if one.grad is not None], norm_type)

    def clip_grad_norm(self, parameters: Sequence[torch.Tensor], max_norm: float, norm_type: float) -> torch.Tensor:
        """Scale gradients so that their common norm is at most `max_norm`; returns the norm before."""
        return nn.utils.clip_grad_norm_(parameters, max_norm, norm_type=norm_type)

    def clip_grad_value(self, parameters: Sequence[torch.Tensor], clip_value: float) -> None:
        """Limit each element of the gradients to [-clip_value, clip_value]."""
        nn.utils.clip_grad_value_(parameters, clip_value)

    def live_state(self, model: nn.Module) -> dict[str, Any]:
        """The model's state by its own names, as this rank has it: tensors are those of the model, be they parts."""
        state: dict[str, Any] = models.unwrap(model, keep_torch_compile=False).state_dict()
        return state

    def model_state(self, model: nn.Module, *, keep: bool = True) -> dict[str, Any]:
        """The model's whole state, by its own names; its tensors are those of the model where it has them whole. All ranks call it.

        Where tensors must be gathered, ranks that do not `keep` them take part and may get nothing.
        """
        return self.live_state(model)

    def load_model_state(self, model: nn.Module, state: Mapping[str, Any], *, strict: bool) -> None:
        """Load what :meth:`live_state` or :meth:`model_state` gave. Tensors of the model's own are filled already. All ranks call it."""
        models.unwrap(model, keep_torch_compile=False).load_state_dict(state, strict=strict)

    def form(self, optimizer: Any) -> Any:
        """An optimizer's groups, state and defaults as scripts and checkpoints know them."""
        return optimizer

    def live_optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """The optimizer's state as this rank has it."""
        state: dict[str, Any] = optimizer.state_dict()
        return state

    def optimizer_state(self, optimizer: Any, *, keep: bool = True) -> dict[str, Any]:
        """The optimizer's whole state, on ranks that `keep` it. All ranks call it."""
        return self.live_optimizer_state(optimizer)

    def load_optimizer_state(self, optimizer: Any, state: dict[str, Any]) -> None:
        """Load what :meth:`optimizer_state` gave. Tensors that are the optimizer's own are filled already. All ranks call it."""
        optimizer.load_state_dict(state)
