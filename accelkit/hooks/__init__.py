"""Hooks around modules' forwards, for users of this API family; they live in the runtime and load on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accelkit.runtime.bigmodel.align import (
        AlignDevicesHook,
        attach_align_device_hook,
        attach_align_device_hook_on_blocks,
        attach_execution_device_hook,
    )
    from accelkit.runtime.bigmodel.casting import (
        CpuOffload,
        LayerwiseCastingHook,
        UserCpuOffloadHook,
        attach_layerwise_casting_hooks,
    )
    from accelkit.runtime.bigmodel.hooks import (
        ModelHook,
        SequentialHook,
        add_hook_to_module,
        remove_hook_from_module,
        remove_hook_from_submodules,
    )

_HOMES = {
    "AlignDevicesHook": "bigmodel.align",
    "attach_align_device_hook": "bigmodel.align",
    "attach_align_device_hook_on_blocks": "bigmodel.align",
    "attach_execution_device_hook": "bigmodel.align",
    "CpuOffload": "bigmodel.casting",
    "LayerwiseCastingHook": "bigmodel.casting",
    "UserCpuOffloadHook": "bigmodel.casting",
    "attach_layerwise_casting_hooks": "bigmodel.casting",
    "ModelHook": "bigmodel.hooks",
    "SequentialHook": "bigmodel.hooks",
    "add_hook_to_module": "bigmodel.hooks",
    "remove_hook_from_module": "bigmodel.hooks",
    "remove_hook_from_submodules": "bigmodel.hooks",
}

__all__ = [
    "AlignDevicesHook",
    "attach_align_device_hook",
    "attach_align_device_hook_on_blocks",
    "attach_execution_device_hook",
    "CpuOffload",
    "LayerwiseCastingHook",
    "UserCpuOffloadHook",
    "attach_layerwise_casting_hooks",
    "ModelHook",
    "SequentialHook",
    "add_hook_to_module",
    "remove_hook_from_module",
    "remove_hook_from_submodules",
]


def __getattr__(name: str) -> Any:
    """Load the runtime module that holds a public name."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"accelkit.runtime.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The module's own names and the public ones."""
    return sorted({*globals(), *__all__})
