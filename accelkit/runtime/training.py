"""What `Accelerator` does in the training loop, as methods."""

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

from accelkit.runtime import results
from accelkit.runtime.accumulate import Accumulation
from accelkit.runtime.data.loader import skip_first_batches
from accelkit.runtime.gradients import GradientState
from accelkit.runtime.models import Prepared
from accelkit.runtime.precision import Precision
from accelkit.runtime.processes import ProcessActions
from accelkit.runtime.settings import AutocastKwargs
from accelkit.runtime.strategies.base import NOTHING, Strategy

Parameters = torch.Tensor | Iterable[torch.Tensor]


class TrainingMethods(ProcessActions):
    """Backward, accumulation, clipping, and what a loop leaves behind."""

    gradient_state: GradientState
    _strategy: Strategy
    _precision: Precision
    _accumulation: Accumulation
    _metrics: results.MetricsLog
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
        if self.gradient_state.num_steps > 1 and not self._strategy.capabilities.owns_accumulation:
            loss = loss / self.gradient_state.num_steps
        self._precision.scale(loss).backward(**kwargs)  # type: ignore[no-untyped-call]

    def accumulate(self, *models: nn.Module) -> AbstractContextManager[Any]:
        """A block around one micro-batch. Gradients of `models` are synchronised where it completes a window, and only there.

        One call counts one micro-batch, however many models it names. The last batch of a loader completes a window.
        """
        if self._accumulation.advance() or self.gradient_state.sync_each_batch:
            return NOTHING
        return self._strategy.no_sync(models)

    def no_sync(self, model: nn.Module) -> AbstractContextManager[Any]:
        """A block in which backward leaves gradients unsynchronised; nothing where nothing would be synchronised."""
        return self._strategy.no_sync((model,))

    @contextmanager
    def join_uneven_inputs(self, joinables: Sequence[nn.Module], even_batches: bool | None = None) -> Iterator[None]:
        """A block in which ranks may run out of batches at different times: those that did answer the others' collectives.

        `even_batches` overrides how prepared map-style loaders end, for the block; True switches the joining off.
        """
        ranked = [loader.ranked for loader in self._dataloaders.objects if loader.ranked is not None]
        before = [batches.plan.even for batches in ranked]
        try:
            for batches in ranked:
                batches.set_even(batches.plan.even if even_batches is None else even_batches)
            with self._strategy.join(joinables, enable=not even_batches):
                yield
        finally:
            for batches, even in zip(ranked, before, strict=True):
                batches.set_even(even)

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
        self.unscale_gradients()
        return self._strategy.clip_grad_norm(chosen, max_norm, norm_type)

    def _norm_so_far(self, parameters: Sequence[torch.Tensor], norm_type: float) -> torch.Tensor:
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norm = nn.utils.get_total_norm(gradients, norm_type)
        scaler = self._precision.scaler
        return norm if scaler is None else norm / scaler.get_scale()

    def clip_grad_value_(self, parameters: Parameters, clip_value: float) -> None:
        """Limit each element of the gradients to [-clip_value, clip_value]; nothing while micro-batches are being accumulated."""
        if not self.gradient_state.sync_gradients:
            return
        self.unscale_gradients()
        chosen = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        self._strategy.clip_grad_value(chosen, clip_value)

    def autocast(self, autocast_handler: AutocastKwargs | None = None) -> AbstractContextManager[Any]:
        """A block that computes in the precision in force; `autocast_handler` overrides the constructor's."""
        return self._precision.autocast(autocast_handler)

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """A view of a loader whose next epoch leaves out its first `num_batches` batches of this rank; later epochs are whole."""
        return skip_first_batches(dataloader, num_batches)

    def log(self, values: Mapping[str, Any], step: int | None = None) -> None:
        """Append metrics to the run's metrics file, on rank 0. Numbers, texts, and tensors of one element."""
        if self.is_main_process:
            self._metrics.write(values, step)

    def free_memory(self, *objects: Any) -> list[Any]:
        """Let go of everything prepared, and of cached device memory; returns a None per object, to assign them to."""
        for prepared in (self._models, self._optimizers, self._dataloaders, self._schedulers):
            prepared.clear()
        self._accumulation.step = 0
        gc.collect()
        if torch.accelerator.is_available():
            torch.accelerator.memory.empty_cache()
        return [None] * len(objects)

    def clear(self, *objects: Any) -> list[Any]:
        """The same as :meth:`free_memory`."""
        return self.free_memory(*objects)
