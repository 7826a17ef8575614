"""The hook that brings a module's tensors and inputs to the device it runs on, and puts offloaded tensors back afterwards.

At rest an offloaded tensor is where its value is: in memory or a view of a file on the CPU. Where the values are kept by a
mapping (`weights_map`) instead, it is on the meta device at rest.
"""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import nn

from accelkit.runtime.bigmodel.device_map import REACHES_IN, place_of
from accelkit.runtime.bigmodel.empty import like_parameter
from accelkit.runtime.bigmodel.hooks import ModelHook, ThreadStack, Users, add_hook_to_module, untraced
from accelkit.runtime.bigmodel.inputs import aligned, find_device
from accelkit.runtime.bigmodel.offload_files import PrefixedDataset
from accelkit.runtime.bigmodel.tensors import (
    Slot,
    all_slots,
    full_device,
    is_transformed,
    join,
    own_slots,
    replace,
    version_of,
)
from accelkit.runtime.errors import SettingError

TiedMap = MutableMapping[int, dict[torch.device, torch.Tensor]]


class Feed(Protocol):
    """Gets tensors ready before they are used, for all hooks of one model."""

    def start(self) -> None:
        """A forward of the whole model begins."""

    def finish(self) -> None:
        """A forward of the whole model ended."""

    def enter(self, key: str) -> None:
        """The module `key` is about to run."""

    def take(self, key: str, homes: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The module's tensors on the device it runs on."""

    def leave(self, key: str) -> None:
        """The module ran."""


class AlignDevicesHook(ModelHook):
    """Runs a module on a device, wherever its inputs and tensors are.

    Args:
        execution_device: where the module runs; None: where it is.
        offload: its tensors are elsewhere between forwards.
        io_same_device: the output goes to the device of the first input.
        weights_map: where offloaded values come from, by name in the module; None: they stay in the module, on the CPU.
        offload_buffers: whether buffers are offloaded too.
        place_submodules: whether the tensors of all modules below belong to it as well.
        skip_keys: keyword arguments (and keys of mappings among the inputs) that stay where they are.
        tied_params_map: data pointer of a tied tensor -> what it is on each device, so that it is brought once.
        feed: gets tensors ready beforehand; `key` is the module's name there.
    """

    def __init__(
        self,
        execution_device: torch.device | str | int | None = None,
        offload: bool = False,
        io_same_device: bool = False,
        weights_map: Mapping[str, torch.Tensor] | None = None,
        offload_buffers: bool = False,
        place_submodules: bool = False,
        skip_keys: str | Sequence[str] | None = None,
        tied_params_map: TiedMap | None = None,
        *,
        feed: Feed | None = None,
        key: str = "",
    ) -> None:
        self.execution_device = None if execution_device is None else full_device(execution_device)
        self.offload = offload
        self.io_same_device = io_same_device
        self.weights_map = weights_map
        self.offload_buffers = offload_buffers
        self.place_submodules = place_submodules
        self.skip_keys = [skip_keys] if isinstance(skip_keys, str) else list(skip_keys or ())
        self.tied_params_map = tied_params_map
        self.feed = feed
        self.key = key
        self.place_nothing = False
        """Whether it moves inputs and outputs alone."""
        self.original_devices: dict[str, torch.device] = {}
        self._input_devices = ThreadStack()
        self._users = Users()
        self._brought: list[tuple[Slot, torch.Tensor, int]] = []

    def __repr__(self) -> str:
        return f"AlignDevicesHook(execution_device={self.execution_device}, offload={self.offload}, key={self.key!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_brought": []}

    def slots(self, module: nn.Module) -> Iterator[Slot]:
        """The tensors that this hook looks after."""
        if self.place_nothing:
            return iter(())
        return all_slots(module) if self.place_submodules else own_slots(module)

    def init_hook(self, module: nn.Module) -> nn.Module:
        """Put tensors where they are between forwards."""
        for slot in self.slots(module):
            tensor = slot.tensor
            self.original_devices[slot.name] = tensor.device
            if not self._offloads(slot):
                self._settle(slot)
            elif self.weights_map is None:
                if tensor.is_meta:
                    raise SettingError(f"{join(self.key, slot.name)} is on the meta device and has no value to offload")
                if tensor.device.type != "cpu":
                    replace(slot, tensor.data.to("cpu"))
            elif not tensor.is_meta:
                slot.put(_like(tensor, tensor.data.to("meta")))
        return module

    def _settle(self, slot: Slot) -> None:
        """Put a tensor that is not offloaded on the device the module runs on."""
        device, tensor = self.execution_device, slot.tensor
        if device is None or tensor.device == device:
            return
        if tensor.is_meta:
            known = self.weights_map or {}
            if slot.name not in known:
                raise SettingError(
                    f"{join(self.key, slot.name)} is on the meta device: there is no value to put on {device}"
                )
            replace(slot, known[slot.name].to(device))
            return
        shared = (self.tied_params_map or {}).get(tensor.data_ptr(), {})
        replace(slot, shared.get(device, tensor.data).to(device))
        shared[device] = slot.tensor.data

    def _offloads(self, slot: Slot) -> bool:
        if not self.offload or (slot.is_buffer and not self.offload_buffers):
            return False
        return self.weights_map is None or slot.name in self.weights_map

    def pre_forward(self, module: nn.Module, /, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Bring tensors and inputs."""
        input_device = find_device([args, kwargs]) if self.io_same_device else None
        if self.feed is not None:
            self.feed.enter(self.key)
        if self.offload:
            self._bring(module)
        if self.io_same_device:
            self._input_devices.items.append(input_device)
        if self.execution_device is None:
            return args, kwargs
        try:
            return aligned(args, self.execution_device), aligned(kwargs, self.execution_device, self.skip_keys)
        except BaseException:
            self.after_failure(module)
            raise

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        """Put tensors back; hand the output over."""
        device = self._release(module)
        return output if device is None else aligned(output, device, self.skip_keys)

    def after_failure(self, module: nn.Module) -> None:
        """Put tensors back."""
        self._release(module)

    def _release(self, module: nn.Module) -> torch.device | None:
        if self.offload:
            self._put_back()
        if self.feed is not None:
            self.feed.leave(self.key)
        found: torch.device | None = self._input_devices.items.pop() if self.io_same_device else None
        return found

    @untraced
    def _bring(self, module: nn.Module) -> None:
        """Swap the tensors in, for the first of the threads that run the module."""
        with self._users.lock:
            self._users.count += 1
            if self._users.count > 1:
                return
            try:
                self._swap_in(module)
            except BaseException:
                self._put_back()
                raise

    def _swap_in(self, module: nn.Module) -> None:
        device = self.execution_device
        slots = [slot for slot in self.slots(module) if self._offloads(slot) and slot.tensor.device != device]
        homes = [slot.tensor if self.weights_map is None else self.weights_map[slot.name] for slot in slots]
        if not homes or device is None:
            return
        with _plain_mode():
            tensors = self._on(device, homes)
        for slot, tensor in zip(slots, tensors, strict=True):
            rest = slot.tensor
            slot.put(_like(rest, tensor))
            self._brought.append((slot, rest, version_of(slot.tensor)))

    def _on(self, device: torch.device, homes: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if any(is_transformed(home) for home in homes):
            return [home.to(device) for home in homes]
        if self.feed is not None:
            return self.feed.take(self.key, [home.detach() for home in homes])
        result = []
        for home in homes:
            shared = (self.tied_params_map or {}).get(home.data_ptr(), {})
            result.append(shared[device] if device in shared else home.detach().to(device))
            shared[device] = result[-1]
        return result

    @untraced
    def _put_back(self) -> None:
        """Swap the tensors out after the last thread. What forward wrote to them (statistics of a norm) is kept."""
        with self._users.lock:
            self._users.count -= 1
            if self._users.count > 0:
                return
            for slot, rest, version in self._brought:
                brought = slot.tensor
                if version_of(brought) != version and not rest.is_meta:
                    with torch.no_grad():
                        rest.data.copy_(brought.data)
                slot.put(rest)
            self._brought = []
            if self.tied_params_map:
                for shared in self.tied_params_map.values():
                    shared.pop(self.execution_device, None)  # type: ignore[arg-type]

    @contextmanager
    def brought(self, module: nn.Module, device: torch.device | str | int | None) -> Iterator[None]:
        """The module's tensors on a device (None: where it runs) for this block."""
        usual = self.execution_device
        with self._users.lock:
            self.execution_device = usual if device is None else full_device(device)
            try:
                self._bring(module)
            finally:
                self.execution_device = usual
        try:
            yield
        finally:
            self._put_back()

    def detach_hook(self, module: nn.Module) -> nn.Module:
        """Give the module its tensors back, each on the device it came from (the CPU, if it came from meta)."""
        for slot in self.slots(module) if self.offload else ():
            if not self._offloads(slot):
                continue
            value = slot.tensor.data
            if value.is_meta and self.weights_map is not None:
                value = self.weights_map[slot.name]
            device = self.original_devices.get(slot.name, value.device)
            if device.type != "meta" or slot.tensor.is_meta:
                replace(slot, value if device.type == "meta" else value.to(device))
        return module


def _plain_mode() -> AbstractContextManager[Any]:
    """Out of inference mode: tensors made in it do not tell that they were written to, and are of no use outside."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()


def _like(tensor: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    return like_parameter(tensor, data) if isinstance(tensor, nn.Parameter) else data


def attach_execution_device_hook(
    module: nn.Module,
    execution_device: torch.device | str | int,
    skip_keys: str | Sequence[str] | None = None,
    preload_module_classes: Sequence[str] | None = None,
    tied_params_map: TiedMap | None = None,
) -> None:
    """Make every module below (and this one) that holds tensors run on a device, without offloading anything."""
    attach_align_device_hook(
        module,
        execution_device,
        skip_keys=skip_keys,
        preload_module_classes=preload_module_classes,
        tied_params_map=tied_params_map,
    )


def attach_align_device_hook(
    module: nn.Module,
    execution_device: torch.device | str | int | None = None,
    offload: bool = False,
    weights_map: Mapping[str, torch.Tensor] | None = None,
    offload_buffers: bool = False,
    module_name: str = "",
    skip_keys: str | Sequence[str] | None = None,
    preload_module_classes: Sequence[str] | None = None,
    tied_params_map: TiedMap | None = None,
) -> None:
    """Put an AlignDevicesHook on every module from here down that holds tensors itself.

    A module of a class in `preload_module_classes` has one hook for all below it. `weights_map` goes by full names, which begin
    with `module_name`. The other arguments are those of AlignDevicesHook.
    """
    for name, holder, whole in holders(module, module_name, preload_module_classes):
        values = None if weights_map is None else PrefixedDataset(weights_map, f"{name}." if name else "")
        hook = AlignDevicesHook(
            execution_device,
            offload=offload,
            weights_map=values,
            offload_buffers=offload_buffers,
            place_submodules=whole,
            skip_keys=skip_keys,
            tied_params_map=tied_params_map,
            key=name,
        )
        add_hook_to_module(holder, hook, append=True)


def holders(
    module: nn.Module, name: str, preload_module_classes: Sequence[str] | None
) -> Iterator[tuple[str, nn.Module, bool]]:
    """The modules that hold tensors, with their names, each once; true: with all that lies below them."""
    return _holders(module, name, preload_module_classes, set())


def _holders(
    module: nn.Module, name: str, preload: Sequence[str] | None, seen: set[int]
) -> Iterator[tuple[str, nn.Module, bool]]:
    if id(module) in seen:
        return
    seen.add(id(module))
    whole = brings_whole(module, preload)
    if any(all_slots(module)) if whole else any(own_slots(module)):
        yield name, module, whole
    for key, child in module.named_children() if not whole else ():
        yield from _holders(child, join(name, key), preload, seen)


def brings_whole(module: nn.Module, preload_module_classes: Sequence[str] | None) -> bool:
    """Whether all tensors below a module are brought together: its forward uses them without calling their modules."""
    return type(module).__name__ in (preload_module_classes or ()) or isinstance(module, REACHES_IN)


def attach_align_device_hook_on_blocks(
    module: nn.Module,
    execution_device: Any = None,
    offload: Any = False,
    weights_map: Mapping[str, torch.Tensor] | None = None,
    offload_buffers: bool = False,
    module_name: str = "",
    skip_keys: str | Sequence[str] | None = None,
    preload_module_classes: Sequence[str] | None = None,
    tied_params_map: TiedMap | None = None,
) -> None:
    """Like :func:`attach_align_device_hook`, with device and offloading by the names of blocks.

    `execution_device` and `offload` are one value for all, or dicts from the names of blocks to values; every module takes those
    of the innermost block it lies in.
    """
    devices = execution_device if isinstance(execution_device, Mapping) else {module_name: execution_device}
    offloads = offload if isinstance(offload, Mapping) else dict.fromkeys(devices, bool(offload))
    for name, holder, whole in holders(module, module_name, preload_module_classes):
        values = None if weights_map is None else PrefixedDataset(weights_map, f"{name}." if name else "")
        hook = AlignDevicesHook(
            place_of(devices, name),
            offload=bool(place_of(offloads, name)),
            weights_map=values,
            offload_buffers=offload_buffers,
            place_submodules=whole,
            skip_keys=skip_keys,
            tied_params_map=tied_params_map,
            key=name,
        )
        add_hook_to_module(holder, hook, append=True)
    root = AlignDevicesHook(devices.get(module_name), io_same_device=True, skip_keys=skip_keys)
    root.place_nothing = True
    add_hook_to_module(module, root, append=True)
