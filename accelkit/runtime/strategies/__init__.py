"""Ways of training on several ranks. A new one is a file here, and a line in the registry."""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from accelkit.runtime.errors import SettingError

if TYPE_CHECKING:
    import torch

    from accelkit.runtime.settings import Handlers
    from accelkit.runtime.state import PartialState
    from accelkit.runtime.strategies.base import Strategy

REGISTRY: Final[dict[str, str]] = {
    "single": "accelkit.runtime.strategies.single:SingleStrategy",
    "ddp": "accelkit.runtime.strategies.ddp:DDPStrategy",
    "fsdp": "accelkit.runtime.strategies.fsdp:FSDPStrategy",
    "xla": "accelkit.runtime.strategies.xla:XlaStrategy",
    "deepspeed": "accelkit.runtime.strategies.deepspeed:DeepSpeedStrategy",
}
"""Name -> module:class, imported when it is asked for."""


_TAKES: Final = {"xla": ("fsdp",)}
"""Strategies that understand the plug-ins of others."""


def resolve(name: str, size: int, asked: str | None = None, only: str | None = None) -> str:
    """The name of a strategy for a world of `size` ranks, on a device that may have its `only` strategy.

    "auto" is the device's, else the one that a plug-in or a layout of ranks has `asked` for; without any, ddp for more than one rank, else
    single. Raises SettingError for an unknown name, for one that is not for the device, and for a plug-in or layout that the strategy would
    not use.
    """
    if name == "auto":
        name = only or asked or ("ddp" if size > 1 else "single")
    if name not in REGISTRY:
        raise SettingError(f"strategy={name!r} is not known", hint=f"known are auto, {', '.join(REGISTRY)}")
    if only not in (None, name):
        raise SettingError(
            f"strategy={name!r} does not train on this process's device, {only!r} does",
            hint=f"use strategy 'auto' or {only!r} (with FullyShardedDataParallelPlugin() it shards), or Accelerator(cpu=True)",
        )
    if asked is not None and asked not in (name, *_TAKES.get(name, ())):
        raise SettingError(
            f"strategy={name!r}, and a plug-in or layout that is for {asked!r}",
            hint=f"leave one out, or use strategy={asked!r}",
        )
    return name


def make(name: str, state: "PartialState", handlers: "Handlers", dtype: "torch.dtype | None" = None) -> "Strategy":
    """The strategy of that name. Raises SettingError for an unknown name, UnsupportedError for a world that does not fit."""
    module, _, kind = REGISTRY[resolve(name, state.num_processes, handlers.strategy(), state.kind.strategy)].partition(
        ":"
    )
    made: Strategy = getattr(import_module(module), kind)(state, handlers, dtype)
    return made
