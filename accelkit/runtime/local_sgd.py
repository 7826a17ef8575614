"""Local SGD: every rank trains by itself, and every few steps the ranks average their parameters."""

from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from accelkit.runtime.errors import SettingError
from accelkit.runtime.settings import DistributedType
from accelkit.runtime.strategies.base import NOTHING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from accelkit.runtime.accelerator import Accelerator

_NO_COPY_PER_RANK: Final = (
    DistributedType.FSDP,
    DistributedType.DEEPSPEED,
    DistributedType.MEGATRON_LM,
    DistributedType.XLA,
)


class LocalSGD:
    """A block in which gradients stay on their rank and parameters are averaged instead.

    with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=8) as local_sgd:
        for batch in loader:
            ...
            optimizer.step()
            local_sgd.step()

    Parameters that are trained are averaged at every `local_sgd_steps`-th call of `step`, and at the end of the block; all ranks call
    `step` equally often. A block that ends by an error averages nothing. Outside of several ranks, and with `enabled=False`, the block
    changes nothing.

    Raises NotImplementedError where no rank has the whole model, SettingError for a number of steps below 1.
    """

    def __init__(
        self, accelerator: "Accelerator", model: nn.Module, local_sgd_steps: int, enabled: bool = True
    ) -> None:
        if accelerator.distributed_type in _NO_COPY_PER_RANK:
            raise NotImplementedError(
                f"LocalSGD needs a whole model on every rank, and {accelerator.distributed_type.value} gives each a part of it; "
                "use strategy='ddp'"
            )
        if local_sgd_steps < 1:
            raise SettingError(f"local_sgd_steps={local_sgd_steps}: must be at least 1")
        self.accelerator = accelerator
        self.model = model
        self.local_sgd_steps = local_sgd_steps
        self.enabled = enabled and accelerator.use_distributed
        self.num_steps = 0
        """Calls of `step` in this block."""
        self._unsynchronised: AbstractContextManager[Any] = NOTHING

    def __enter__(self) -> "LocalSGD":  # noqa: PYI034  (typing has Self from Python 3.11 on)
        self.num_steps = 0
        self._unsynchronised = self.accelerator.no_sync(self.model) if self.enabled else NOTHING
        self._unsynchronised.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._unsynchronised.__exit__(kind, error, traceback)
        if kind is None:
            self._average()

    def step(self) -> None:
        """Count one optimizer step; average when it is due."""
        self.num_steps += 1
        if self.num_steps % self.local_sgd_steps == 0:
            self._average()

    def _average(self) -> None:
        if not self.enabled:
            return
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        with torch.no_grad():
            means = self.accelerator.reduce([parameter.detach() for parameter in trained], reduction="mean")
            for parameter, mean in zip(trained, means, strict=True):
                parameter.copy_(mean)
