"""Ways of training on several ranks. A new one is a file here, and a line in the registry."""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from accelkit.runtime.errors import SettingError

if TYPE_CHECKING:
    from accelkit.runtime.settings import Handlers
    from accelkit.runtime.state import PartialState
    from accelkit.runtime.strategies.base import Strategy

REGISTRY: Final[dict[str, str]] = {
    "single": "accelkit.runtime.strategies.single:SingleStrategy",
    "ddp": "accelkit.runtime.strategies.ddp:DDPStrategy",
}
"""Name -> module:class, imported when it is asked for."""


def resolve(name: str, size: int) -> str:
    """The name of a strategy for a world of `size` ranks: "auto" is ddp for more than one, else single."""
    if name == "auto":
        return "ddp" if size > 1 else "single"
    if name not in REGISTRY:
        raise SettingError(f"strategy={name!r} is not known", hint=f"known are auto, {', '.join(REGISTRY)}")
    return name


def make(name: str, state: "PartialState", handlers: "Handlers") -> "Strategy":
    """The strategy of that name. Raises SettingError for an unknown name, UnsupportedError for a world that does not fit."""
    module, _, kind = REGISTRY[resolve(name, state.num_processes)].partition(":")
    made: Strategy = getattr(import_module(module), kind)(state, handlers)
    return made
