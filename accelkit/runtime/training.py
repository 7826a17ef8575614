"""What `Accelerator` does in the training loop, as methods."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

from accelkit.runtime.accumulate import Accumulation, MicroBatch
from accelkit.runtime.data.loader import skip_first_batches
from accelkit.runtime.gradients import GradientState
from accelkit.runtime.memory import release_memory
from accelkit.runtime.models import Prepared, engine, has_several_places
from accelkit.runtime.precision import Precision
from accelkit.runtime.processes import ProcessActions
from accelkit.runtime.settings import AutocastKwargs
from accelkit.runtime.strategies.base import Strategy

Parameters = torch.Tensor | Iterable[torch.Tensor]


class TrainingMethods(ProcessActions):
    """Backward, accumulation, clipping, and what a loop leaves behind."""

    gradient_state: GradientState
    _strategy: Strategy
    _precision: Precision
    _accumulation: Accumulation
    _models: Prepared
    _optimizers: Prepared
    _dataloaders: Prepared
    _schedulers: Prepared

    @property
    def step(self) -> int:
        """Micro-batches that `accumulate` has counted since a loader last ended."""
        return self._accumulation.step

    @step.setter
    def step(self, value: int) -> None:
        self._accumulation.step = value

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Gradients of `loss`, divided by the number of micro-batches per step (the full one in a short last window, too)."""
        self.gradient_state.note_backward()
        if self.gradient_state.num_steps > 1 and not self._strategy.capabilities.owns_accumulation:
            loss = loss / self.gradient_state.num_steps
        self._strategy.backward(self._precision.scale(loss), **kwargs)

    def accumulate(self, *models: nn.Module) -> AbstractContextManager[Any]:
        """A block around one micro-batch. Gradients of `models` are synchronised where it completes a window, and only there.

        One block counts one micro-batch, however many models it names; so does a block inside another one, as for the two models of a GAN.
        The last batch of a loader completes a window; of loaders iterated side by side, the last batch of the shortest.
        """
        return MicroBatch(self._accumulation, [engine(model) for model in models])

    def no_sync(self, model: nn.Module) -> AbstractContextManager[Any]:
        """A block in which backward leaves gradients unsynchronised; nothing where nothing would be synchronised."""
        return self._strategy.no_sync((engine(model),))

    def trigger_sync_in_backward(self, model: nn.Module) -> AbstractContextManager[Any]:
        """A block whose next backward synchronises gradients of `model`, whose forward ran in a :meth:`no_sync` block.

        For several forwards followed by several backwards. Nothing where nothing would be synchronised.
        """
        return self._strategy.sync_in_backward(engine(model))

    @contextmanager
    def join_uneven_inputs(self, joinables: Sequence[nn.Module], even_batches: bool | None = None) -> Iterator[None]:
        """A block in which ranks may run out of batches at different times: those that did answer the others' collectives.

        `even_batches` overrides how prepared loaders of every kind end, for the block; True switches the joining off. The last batch of
        any rank completes the window of `accumulate` on all ranks.
        """
        loaders = [] if even_batches is None else list(self._dataloaders.objects)
        before = [loader.plan.even for loader in loaders]
        try:
            for loader in loaders:
                loader.set_even(even_batches)
            with self._strategy.join(
                [engine(model) for model in joinables],
                enable=not even_batches,
                complete=self._accumulation.complete if self._accumulation.differs else None,
            ):
                yield
        finally:
            for loader, even in zip(loaders, before, strict=True):
                loader.set_even(even)

    def unscale_gradients(self, optimizer: Any = None) -> None:
        """Bring gradients back to their true size under fp16, of one, several, or all prepared optimizers; once per step."""
        chosen = self._optimizers.objects if optimizer is None else optimizer
        for item in chosen if isinstance(chosen, (list, tuple)) else [chosen]:
            item.unscale()

    def clip_grad_norm_(self, parameters: Parameters, max_norm: float, norm_type: float = 2) -> torch.Tensor:
        """Scale gradients so that their common norm is at most `max_norm`; returns the norm before.

        While micro-batches are being accumulated gradients are left alone, and the norm so far is returned.
        """
        chosen = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if not self.gradient_state.sync_gradients:
            return self._norm_so_far(chosen, norm_type)
        self._unscale_those_of(chosen)
        return self._strategy.clip_grad_norm(chosen, max_norm, norm_type)

    def _unscale_those_of(self, parameters: Sequence[torch.Tensor]) -> None:
        """Unscale for the optimizers of these parameters: gradients of others may still be on their way. For all where none has them."""
        if self._precision.scaler is None:
            return
        asked = set(map(id, parameters))
        owners = [
            one
            for one in self._optimizers
            if any(id(p) in asked for group in one.param_groups for p in group["params"])
        ]
        self.unscale_gradients(owners or None)

    def _norm_so_far(self, parameters: Sequence[torch.Tensor], norm_type: float) -> torch.Tensor:
        norm = self._strategy.grad_norm(parameters, norm_type)
        scaler = self._precision.scaler
        return norm if scaler is None else norm / scaler.get_scale()

    def clip_grad_value_(self, parameters: Parameters, clip_value: float) -> None:
        """Limit each element of the gradients to [-clip_value, clip_value]; nothing while micro-batches are being accumulated."""
        if not self.gradient_state.sync_gradients:
            return
        chosen = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        self._unscale_those_of(chosen)
        self._strategy.clip_grad_value(chosen, clip_value)

    def verify_device_map(self, model: nn.Module) -> bool:
        """Whether the model, or a model in it, was dispatched to several devices, of which the CPU and the disk are two."""
        return has_several_places(model)

    def autocast(self, autocast_handler: AutocastKwargs | None = None) -> AbstractContextManager[Any]:
        """A block that computes in the precision in force; `autocast_handler` overrides the constructor's."""
        return self._precision.autocast(autocast_handler)

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """A view of a loader whose next epoch leaves out its first `num_batches` batches of this rank; later epochs are whole."""
        return skip_first_batches(dataloader, num_batches)

    def free_memory(self, *objects: Any) -> list[Any]:
        """Let go of everything prepared, and of cached device memory; returns a None per object, to assign them to."""
        for prepared in (self._models, self._optimizers, self._dataloaders, self._schedulers):
            prepared.clear()
        self._strategy.forget()
        self._accumulation.step = 0
        return release_memory(*objects)

    def clear(self, *objects: Any) -> list[Any]:
        """The same as :meth:`free_memory`."""
        return self.free_memory(*objects)
