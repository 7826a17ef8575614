"""The tensors of a module tree: naming, finding and replacing them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from accelkit.runtime.bigmodel.empty import like_parameter
from accelkit.runtime.errors import SettingError

FIRST_FORWARD: Final = "run a forward on a small batch first, which gives lazy modules their shapes"


@dataclass(slots=True, eq=False)
class Slot:
    """Where a tensor is registered: a module, and the name there."""

    module: nn.Module
    key: str
    is_buffer: bool
    name: str
    """Full dotted name in the model."""

    @property
    def tensor(self) -> torch.Tensor:
        """What is registered there now."""
        held: torch.Tensor = self._table[self.key]
        return held

    @property
    def is_persistent(self) -> bool:
        """Whether state dicts hold it."""
        return not self.is_buffer or self.key not in self.module._non_persistent_buffers_set  # noqa: SLF001

    def put(self, tensor: torch.Tensor) -> None:
        """Register another tensor, as it is: no registration hook, no check."""
        self._table[self.key] = tensor

    @property
    def _table(self) -> dict[str, Any]:
        return self.module._buffers if self.is_buffer else self.module._parameters  # noqa: SLF001


def own_slots(module: nn.Module, prefix: str = "") -> Iterator[Slot]:
    """The tensors registered directly in a module: parameters, then buffers."""
    for key, parameter in module._parameters.items():  # noqa: SLF001
        if parameter is not None:
            yield Slot(module, key, False, join(prefix, key))
    for key, buffer in module._buffers.items():  # noqa: SLF001
        if buffer is not None:
            yield Slot(module, key, True, join(prefix, key))


def all_slots(model: nn.Module, prefix: str = "") -> Iterator[Slot]:
    """Every registered tensor under each of its names, in module order; what is tied comes once for each name."""
    for name, module in walk_modules(model, prefix):
        yield from own_slots(module, name)


def walk_modules(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Every module under each of its names, parents first. Many times faster than `named_modules` on deep trees."""
    pending = [(prefix, model)]
    while pending:
        name, module = pending.pop()
        yield name, module
        children = [(join(name, key), child) for key, child in module._modules.items() if child is not None]  # noqa: SLF001
        pending.extend(reversed(children))


def join(prefix: str, name: str) -> str:
    """`prefix.name`, either of which may be empty."""
    return f"{prefix}.{name}" if prefix and name else prefix or name


def is_below(name: str, prefix: str) -> bool:
    """Whether a dotted name is `prefix` or lies in it; everything lies in the empty one."""
    return not prefix or name == prefix or name.startswith(prefix + ".")


def find_slot(module: nn.Module, name: str) -> Slot:
    """The slot of a dotted name. Raises SettingError (a ValueError) when the module has no such parameter or buffer."""
    path, _, key = name.rpartition(".")
    try:
        owner = module.get_submodule(path)
    except AttributeError as error:
        raise SettingError(f"{name}: {type(module).__name__} has no module {path!r} ({error})") from None
    for slot in own_slots(owner, path):
        if slot.key == key:
            return slot
    raise SettingError(
        f"{name}: {type(owner).__name__} does not have a parameter or a buffer named {key!r}",
        hint=f"it has {', '.join(slot.key for slot in own_slots(owner)) or 'none'}",
    )


def replace(slot: Slot, value: torch.Tensor) -> torch.Tensor:
    """Give the tensor at a slot another value; returns what is registered there then.

    A parameter keeps its class and attributes; it stays the same object (which optimizers and ties hold) where torch allows.
    """
    old = slot.tensor
    if slot.is_buffer and not isinstance(old, nn.Parameter):
        slot.put(value)
        return value
    if old.is_meta != value.is_meta or old.device.type != value.device.type or type(value) is not torch.Tensor:
        made: torch.Tensor = like_parameter(old, value)
        slot.put(made)
        return made
    if old.dtype != value.dtype and not value.is_floating_point() and not value.is_complex():
        old.requires_grad_(False)
    old.data = value
    return old


def full_device(device: torch.device | str | int) -> torch.device:
    """A device with its index, as tensors on it have it."""
    found = torch.device(device)
    index: int | None = found.index
    if index is not None or found.type in ("cpu", "meta"):
        return found
    return torch.device(found.type, torch.accelerator.current_device_index() if torch.accelerator.is_available() else 0)


def check_device_same(first_device: torch.device | str | int, second_device: torch.device | str | int) -> bool:
    """Whether two names mean one device: one without an index is the present device of its kind."""
    return full_device(first_device) == full_device(second_device)


def version_of(tensor: torch.Tensor) -> int:
    """A number that grows when a tensor is written to in place; always 0 for one that was made in inference mode, which has none."""
    return 0 if tensor.is_inference() else tensor._version  # noqa: SLF001  (torch tells it nowhere else)


def is_transformed(tensor: torch.Tensor) -> bool:
    """Whether it stands for a tensor in a function that torch.func transforms, and has no memory of its own."""
    found: bool = torch._C._functorch.is_functorch_wrapped_tensor(tensor)  # noqa: SLF001  (torch has no public name for it)
    return found


def set_module_tensor_to_device(
    module: nn.Module,
    tensor_name: str,
    device: torch.device | str | int,
    value: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
    fp16_statistics: Any = None,  # noqa: ARG001  (the family's signature)
    tied_params_map: dict[int, dict[torch.device, torch.Tensor]] | None = None,
    non_blocking: bool = False,
    clear_cache: bool = True,  # noqa: ARG001  (the family's signature)
) -> None:
    """Put one parameter or buffer on a device, with a new value if one is given.

    Args:
        module: the module that `tensor_name` (dotted) starts from.
        tensor_name: dotted name of the parameter or buffer.
        device: where the tensor goes.
        value: of the same shape; takes the dtype of the tensor it replaces unless `dtype` is given. Needed where the
            tensor is on the meta device and `device` is not.
        dtype: of the result, for floating tensors; others keep theirs.
        tied_params_map: data pointer of a tied tensor -> what it became on each device, so that it is moved once.
        non_blocking: copy without waiting, where source and device allow it.
        fp16_statistics: accepted, not used.
        clear_cache: accepted, not used: nothing is cached.

    Raises SettingError (a ValueError) for an unknown name, a wrong shape, or a missing value.
    """
    slot = find_slot(module, tensor_name)
    old = slot.tensor
    target = torch.device(device)
    if value is None and old.is_meta and target.type != "meta":
        raise SettingError(
            f"{tensor_name} is on the meta device: it has no value to put on {target}", hint="give its value"
        )
    if value is not None and value.shape != old.shape:
        raise SettingError(
            f"Trying to set a tensor of shape {tuple(value.shape)} in {tensor_name} (which has shape {tuple(old.shape)})"
        )
    source = old.data if value is None else value.detach()
    known: dict[torch.device, torch.Tensor] = {}
    if tied_params_map and not source.is_meta:
        known = tied_params_map.get(source.data_ptr(), known)
    if target not in known:
        known[target] = source.to(target, _wanted_dtype(source, old, value, dtype), non_blocking=non_blocking)
    replace(slot, known[target])


def _wanted_dtype(
    source: torch.Tensor, old: torch.Tensor, value: torch.Tensor | None, dtype: torch.dtype | None
) -> torch.dtype:
    """Floating tensors take the dtype asked for, else that of what they replace; others keep their own."""
    wanted = dtype if dtype is not None else old.dtype if value is not None else source.dtype
    return wanted if source.is_floating_point() and wanted.is_floating_point else source.dtype


def named_module_tensors(
    module: nn.Module, include_buffers: bool = True, recurse: bool = False, remove_non_persistent: bool = False
) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and tensors of a module: parameters, then buffers; what is tied comes once.

    `remove_non_persistent` leaves out buffers that state dicts do not hold.
    """
    yield from module.named_parameters(recurse=recurse)
    if include_buffers:
        hidden = get_non_persistent_buffers(module, recurse=recurse, fqns=True) if remove_non_persistent else set()
        for name, buffer in module.named_buffers(recurse=recurse):
            if name not in hidden:
                yield name, buffer


def get_non_persistent_buffers(module: nn.Module, recurse: bool = False, fqns: bool = False) -> set[str]:
    """Names of buffers that state dicts do not hold: with `fqns` dotted from `module`, else the last part alone."""
    found = all_slots(module) if recurse else own_slots(module)
    return {slot.name if fqns else slot.key for slot in found if not slot.is_persistent}
