"""Building models without memory for their parameters: `init_empty_weights` and `init_on_device`.

What a thread builds inside the block is changed as it is registered, through torch's own registration hooks; other threads
are left alone. Filling a tensor that has no memory does nothing: torch would import its compiler first.
"""

import mmap
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from math import prod
from typing import Any, Final

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.overrides import TorchFunctionMode

_SHAPE_CHANGING: Final = frozenset(
    (
        *("as_strided_", "detach_", "rename_", "requires_grad_", "resize_", "resize_as_", "resize_as_sparse_", "set_"),
        *("share_memory_", "sparse_resize_", "squeeze_", "swapaxes_", "swapdims_", "t_", "transpose_", "unsqueeze_"),
    )
)
"""In-place functions that do more than write values."""
_PLAIN: Final = {"size", "dtype", "device", "requires_grad"}
"""Arguments of torch.empty that do not change what memory it takes."""
_WIDEST: Final = 16
"""Bytes of one value of the widest dtype."""
_LARGE: Final = 64 << 20
"""Bytes from which an uninitialized tensor takes address space alone until it is written to."""


@contextmanager
def init_empty_weights(include_buffers: bool | None = None) -> Iterator[None]:
    """Parameters of models built in this block take no memory: they are on the meta device.

    Class, `requires_grad`, attributes and ties of each parameter stay. Buffers are real unless `include_buffers` (default
    False); with it, everything that is constructed in the block is on the meta device. Models built before are not touched.
    Blocks nest (the innermost counts), and concern the thread that entered them alone.
    """
    with init_on_device(torch.device("meta"), include_buffers=include_buffers):
        yield


@contextmanager
def init_on_device(device: torch.device | str | int, include_buffers: bool | None = None) -> Iterator[None]:
    """Like :func:`init_empty_weights`, with any device in the place of meta."""
    target = torch.device(device)
    registration = _Registration(target, bool(include_buffers), _blocks.entered[-1] if _blocks.entered else None)
    with ExitStack() as stack:
        if registration.builds_on is not None:
            stack.enter_context(registration.builds_on)
        stack.enter_context(_Constructing(skip_values=target.type == "meta"))
        stack.enter_context(_registering(registration))
        yield


class _Constructing(TorchFunctionMode):
    """Sees every torch function that this thread calls inside the block."""

    def __init__(self, *, skip_values: bool) -> None:
        super().__init__()
        self._skip_values = skip_values

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Skip writing values to tensors that have none; large uninitialized tensors are address space at first."""
        named: dict[str, Any] = kwargs or {}
        if not self._skip_values:
            return func(*args, **named)
        if func is torch.empty:
            reserved = _reserve(args, named)
            return func(*args, **named) if reserved is None else reserved
        name = getattr(func, "__name__", "")
        if name[-1:] == "_" and name[-2:] != "__" and name not in _SHAPE_CHANGING:
            target = args[0] if args else named.get("tensor")
            if isinstance(target, torch.Tensor) and target.is_meta:
                return target
        return func(*args, **named)


def _reserve(args: Sequence[Any], named: Mapping[str, Any]) -> torch.Tensor | None:
    """What torch.empty gives, in memory that the system does not count until it is used; None where torch is to do it."""
    shape = _plain_shape(args, named)
    if shape is None or prod(shape) * _WIDEST < _LARGE:
        return None
    device = named.get("device")
    if not named.keys() <= _PLAIN or (device is not None and torch.device(device).type != "cpu"):
        return None
    dtype = named.get("dtype") or torch.get_default_dtype()
    size = prod(shape) * dtype.itemsize
    if size < _LARGE or torch.get_default_device().type != "cpu":
        return None
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    made = torch.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=dtype).view(*shape)
    return made.requires_grad_(bool(named.get("requires_grad")))


def _plain_shape(args: Sequence[Any], named: Mapping[str, Any]) -> Sequence[int] | None:
    """The shape that torch.empty is to make; None where it is not of Python's own numbers."""
    shape = named["size"] if "size" in named else args[0] if len(args) == 1 and type(args[0]) is not int else args
    is_plain = isinstance(shape, tuple | list) and all(type(length) is int for length in shape)
    return shape if is_plain else None


class _Registration:
    """What happens to the parameters (and buffers) that one block registers."""

    def __init__(self, device: torch.device, include_buffers: bool, outer: "_Registration | None") -> None:
        self._device = device
        self._include_buffers = include_buffers
        present = torch.get_default_device()
        is_changed = outer is not None and outer.builds_on == present
        self.usual: torch.device = outer.usual if outer is not None and is_changed else present
        """Where tensors are made that nobody gives a device, but for blocks like this."""
        self.builds_on: torch.device | None = device if include_buffers else self.usual if is_changed else None
        """What the block makes the default device; None where it leaves that as it is."""
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}
        """What a tensor became, by its id, for as long as it lives: registered twice, it stays one."""

    def parameter(self, parameter: nn.Parameter) -> torch.Tensor | None:
        return self._once(parameter, _parameter_on)

    def buffer(self, buffer: torch.Tensor | None) -> torch.Tensor | None:
        return self._once(buffer, _buffer_on) if self._include_buffers and buffer is not None else None

    def _once(
        self, tensor: torch.Tensor, move: Callable[[Any, torch.device], torch.Tensor | None]
    ) -> torch.Tensor | None:
        known = self._known.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        moved = move(tensor, self._device)
        if moved is not None:
            self._known[id(tensor)] = (weakref.ref(tensor), moved)
        return moved


def _parameter_on(parameter: nn.Parameter, device: torch.device) -> torch.Tensor | None:
    """The same parameter on a device: a new object of the same class with the same attributes; None when it is there."""
    if type(parameter) is nn.Parameter:
        return _plain_parameter_on(parameter, device)
    if isinstance(parameter, nn.UninitializedParameter):
        lazy: Any = nn.UninitializedParameter
        made: torch.Tensor = lazy(parameter.requires_grad, device=device)
        return made
    with torch.no_grad():
        data = parameter.data.to(device)
    if data.device == parameter.device:
        return None
    return like_parameter(parameter, data)


def _plain_parameter_on(parameter: nn.Parameter, device: torch.device) -> torch.Tensor | None:
    """The same, without what subclasses and modes would be asked at each step: most parameters are of no class of their own."""
    with torch._C.DisableTorchFunction():  # noqa: SLF001  (torch has no public name for it)
        present = parameter.detach()
        data = present.to(device)
        if data.device == present.device:
            return None
        made = torch.Tensor._make_subclass(nn.Parameter, data, parameter.requires_grad)  # noqa: SLF001  (as nn.Parameter does)
        if parameter.__dict__:
            made.__dict__.update(parameter.__dict__)
        return made


def _buffer_on(buffer: torch.Tensor, device: torch.device) -> torch.Tensor | None:
    if isinstance(buffer, nn.UninitializedBuffer):
        return None
    moved = buffer.to(device)
    return None if moved is buffer else moved


def like_parameter(parameter: torch.Tensor, data: torch.Tensor) -> nn.Parameter:
    """A parameter with other data: class, attributes and `requires_grad` (where the type can have one) of `parameter`."""
    wanted = parameter.requires_grad and (data.is_floating_point() or data.is_complex())
    if hasattr(type(data), "__torch_dispatch__") and type(data) is not torch.Tensor and _is_wrapper(data):
        made = nn.Parameter(data, requires_grad=wanted)
    else:
        kind = type(parameter) if isinstance(parameter, nn.Parameter) else nn.Parameter
        made = torch.Tensor._make_subclass(kind, data.detach(), wanted)  # noqa: SLF001  (as torch's own Parameter does)
    made.__dict__.update({key: value for key, value in parameter.__dict__.items() if key not in made.__dict__})
    return made


def _is_wrapper(data: torch.Tensor) -> bool:
    """Whether a tensor is a class of its own (quantized, distributed), which is not to be re-made from its memory."""
    return type(data) not in (torch.Tensor, nn.Parameter) and not isinstance(data, nn.Parameter)


class _Blocks(threading.local):
    """The blocks that this thread is in, the innermost last."""

    def __init__(self) -> None:
        self.entered: list[_Registration] = []


_blocks: Final = _Blocks()
_lock: Final = threading.Lock()
_installed: list[Any] = []
_users = 0


@contextmanager
def _registering(registration: _Registration) -> Iterator[None]:
    """Put a block on this thread's list; torch's hooks are there while any thread is in one."""
    global _users  # noqa: PLW0603  (counts the blocks of all threads)
    with _lock:
        _users += 1
        if _users == 1:
            _installed.append(register_module_parameter_registration_hook(_on_parameter))  # type: ignore[arg-type]
            _installed.append(register_module_buffer_registration_hook(_on_buffer))  # type: ignore[arg-type]
    _blocks.entered.append(registration)
    try:
        yield
    finally:
        _blocks.entered.pop()
        with _lock:
            _users -= 1
            while _users == 0 and _installed:
                _installed.pop().remove()


def _on_parameter(_module: nn.Module, _name: str, parameter: nn.Parameter) -> torch.Tensor | None:
    return _blocks.entered[-1].parameter(parameter) if _blocks.entered else None


def _on_buffer(_module: nn.Module, _name: str, buffer: torch.Tensor | None) -> torch.Tensor | None:
    return _blocks.entered[-1].buffer(buffer) if _blocks.entered else None
