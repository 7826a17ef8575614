"""Ranks that run out of batches at different times, under DistributedDataParallel."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.nn.parallel import DistributedDataParallel


@contextmanager
def join(
    models: Sequence[DistributedDataParallel], complete: Callable[[], None] | None, *, enable: bool
) -> Iterator[None]:
    """A block in which ranks that are out of batches answer the collectives of those that are not.

    With `complete`, which ends this rank's accumulation window, ranks agree in every forward whether gradients are synchronised: where
    one of them does, being at its end, all do.
    """
    agreement = Agreement(models, complete) if complete is not None and enable else None
    first: list[Any] = [] if agreement is None else [agreement]
    hook = None if agreement is None else models[0].register_forward_pre_hook(agreement.reach)
    try:
        with Join([*first, *models], enable=enable, throw_on_early_termination=False):
            yield
    finally:
        if hook is not None:
            hook.remove()
        Join(list(models), enable=False)  # else forwards after the block would still tell ranks that wait for nothing


class Agreement(Joinable):
    """What ranks exchange before each forward of the first model: whether any of them synchronises gradients in this step."""

    def __init__(self, models: Sequence[DistributedDataParallel], complete: Callable[[], None]) -> None:
        super().__init__()
        self._models = models
        self._complete = complete

    def reach(self, *_: Any) -> None:
        """A forward begins: synchronise in this step, too, where another rank does."""
        Join.notify_join_context(self)
        mine = self._models[0].require_backward_grad_sync
        if self.exchange(synchronises=mine) and not mine:
            for model in self._models:
                model.require_backward_grad_sync = True  # the block of no_sync puts back what was before it
            self._complete()

    def exchange(self, *, synchronises: bool) -> bool:
        """Whether any rank synchronises."""
        flag = torch.tensor([float(synchronises)], device=self.join_device)
        dist.all_reduce(flag, group=self.join_process_group)
        return bool(flag.item())

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """What a rank without batches does in each step of the others."""
        return _Answer(self)

    @property
    def join_device(self) -> torch.device:
        """Where flags must lie to travel."""
        found: torch.device = self._models[0].join_device
        return found

    @property
    def join_process_group(self) -> Any:
        """The ranks that the models are copied to."""
        return self._models[0].join_process_group


class _Answer(JoinHook):
    """The answer of a rank that is out of batches: it synchronises nothing by itself."""

    def __init__(self, agreement: Agreement) -> None:
        self._agreement = agreement

    def main_hook(self) -> None:
        """Take part in one exchange."""
        self._agreement.exchange(synchronises=False)
