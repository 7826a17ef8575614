"""Memory: letting go of it, and finding the batch size that fits into it."""

import gc
import inspect
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Final

import torch

from accelkit.runtime.errors import SettingError, UnsupportedError

_TOO_BIG: Final = (
    " out of memory.",  # CUDA, ROCm, XPU: "CUDA out of memory. Tried to allocate ..."
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED.",
    "MPS backend out of memory",
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
)
_SHRINK: Final = 0.9


def clear_device_cache(garbage_collection: bool = False) -> None:
    """Give cached memory of the device back to it; with `garbage_collection` Python lets go of what is in cycles first."""
    if garbage_collection:
        gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.memory.empty_cache()


def release_memory(*objects: Any) -> list[Any]:
    """Collect garbage and clear the device's cache. Returns a None per object, to assign to the names that held them.

    `model, optimizer = release_memory(model, optimizer)`: memory is free once nothing else holds the objects.
    """
    nothing = [None] * len(objects)
    del objects
    clear_device_cache(garbage_collection=True)
    return nothing


def should_reduce_batch_size(exception: BaseException) -> bool:
    """Whether an error says that memory (of a device, or of the host) did not suffice."""
    if isinstance(exception, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(exception, RuntimeError) and any(text in str(exception) for text in _TOO_BIG)


def find_executable_batch_size(
    function: Callable[..., Any] | None = None,
    starting_batch_size: int = 128,
    reduce_batch_size_fn: Callable[..., int] | None = None,
) -> Any:
    """Decorator: call `function(batch_size, ...)`, again with a smaller batch size whenever memory did not suffice.

    The decorated function is called without the batch size. A size that worked is where the next call begins;
    after none did, it begins anew. Other errors pass. Each rank
    decides for itself: on several ranks, try with one.

    Args:
        function: its first argument is the batch size.
        starting_batch_size: the first to try.
        reduce_batch_size_fn: gives the next to try: `int(size * 0.9)` when there is none. It is called without arguments, or with the
            size that was too big where it takes one.

    Raises UnsupportedError (a RuntimeError) when no size is left, TypeError when the batch size is passed by the caller.
    """
    if function is None:
        return partial(
            find_executable_batch_size,
            starting_batch_size=starting_batch_size,
            reduce_batch_size_fn=reduce_batch_size_fn,
        )
    if starting_batch_size < 1:
        raise SettingError(f"starting_batch_size={starting_batch_size}: must be at least 1")
    signature, smaller = inspect.signature(function), _reducer(reduce_batch_size_fn)
    size = starting_batch_size

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal size
        _check_call(function, signature, args, kwargs)
        why = ""
        while size > 0:
            clear_device_cache(garbage_collection=True)
            try:
                return function(size, *args, **kwargs)
            except (RuntimeError, MemoryError) as error:
                if not should_reduce_batch_size(error):
                    raise
                why = f"{type(error).__name__}: {error}"
            # Outside of the handler: the error is gone, and with it the frames that held the memory.
            size = _next_size(smaller, size)
        size = starting_batch_size  # another call may need less
        raise UnsupportedError("No executable batch size found, reached zero.", hint=f"the last one failed with {why}")

    return run


def _reducer(given: Callable[..., int] | None) -> Callable[[int], int]:
    """What gives the size after a size that was too big."""
    if given is None:
        return lambda size: int(size * _SHRINK)
    takes_size = any(
        parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD, parameter.VAR_POSITIONAL)
        for parameter in inspect.signature(given).parameters.values()
    )
    return given if takes_size else lambda _: given()


def _next_size(smaller: Callable[[int], int], size: int) -> int:
    found = smaller(size)
    if found >= size:
        raise SettingError(
            f"reduce_batch_size_fn: {found} comes after {size}, which was too big already",
            hint="return a smaller number each time",
        )
    return found


def _check_call(
    function: Callable[..., Any], signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Raise TypeError, with the call that would be right, when the caller passes the batch size as well."""
    names = list(signature.parameters)
    try:
        signature.bind(None, *args, **kwargs)
    except TypeError as error:
        called = getattr(function, "__name__", str(function))
        too_many = len(args) + 1 > len(names) or names[0] in kwargs
        if not names or not too_many:
            raise TypeError(f"{called}: {error}") from None
        rest = args if names[0] in kwargs else args[1:]
        others = {name: value for name, value in kwargs.items() if name != names[0]}
        shown = ", ".join(f"{name}={value!r}" for name, value in [*zip(names[1:], rest, strict=False), *others.items()])
        raise TypeError(
            f"Batch size was passed into `{called}` as the first argument when called.\n"
            f"  Remove this as the decorator already does so: `{called}({shown})`"
        ) from None
