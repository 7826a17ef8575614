"""accelkit: containerized, reproducible PyTorch runs.

Importing the package costs nothing: the public names of the runtime are looked up on first use (PEP 562), so that
``from accelkit import Accelerator`` needs torch and ``import accelkit`` does not.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # what type checkers take for true; importing it from typing would cost more than all the rest
if TYPE_CHECKING:
    from typing import Any

    from accelkit.runtime import *  # noqa: F403  (the names that the lazy lookup below serves)

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Forward a public name, and the list of them, to :mod:`accelkit.runtime`; raise AttributeError for any other."""
    if name.startswith("_") and name != "__all__":
        raise AttributeError(f"module 'accelkit' has no attribute {name!r}")
    runtime = import_module("accelkit.runtime")
    if name == "__all__":
        return runtime.__all__
    if name not in runtime.__all__:
        raise AttributeError(f"module 'accelkit' has no attribute {name!r}")
    return getattr(runtime, name)


def __dir__() -> list[str]:
    """The module's own names and the runtime's public ones."""
    return sorted([*globals(), *import_module("accelkit.runtime").__all__])
