"""Hooks of a dispatched model: tensors stay where they are at rest, and are brought to where their module runs."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch import nn

from accelkit.runtime.bigmodel.align import AlignDevicesHook, Feed
from accelkit.runtime.bigmodel.hooks import GuardedMethod, ModelHook, ThreadStack
from accelkit.runtime.bigmodel.inputs import aligned, find_device
from accelkit.runtime.bigmodel.refusal import is_in_grad, refusal, without_backward
from accelkit.runtime.bigmodel.tensors import Slot, all_slots, full_device, own_slots, replace
from accelkit.runtime.errors import UnsupportedError


class PlacedHook(AlignDevicesHook):
    """Runs a module whose tensors were placed already. A tensor elsewhere than `execution_device` is brought for each forward."""

    def __init__(
        self,
        execution_device: torch.device,
        *,
        skip_keys: str | Sequence[str] | None,
        place_submodules: bool,
        feed: Feed | None,
        key: str,
    ) -> None:
        super().__init__(
            execution_device, offload=True, skip_keys=skip_keys, place_submodules=place_submodules, feed=feed, key=key
        )
        self.offload_buffers = True

    def named_slots(self, module: nn.Module, name: str) -> Iterator[Slot]:
        """The tensors that this hook looks after, by their names in the model."""
        return all_slots(module, name) if self.place_submodules else own_slots(module, name)

    def init_hook(self, module: nn.Module) -> nn.Module:
        """Find out whether there is anything to bring."""
        self.offload = any(slot.tensor.device != self.execution_device for slot in self.slots(module))
        return module

    def detach_hook(self, module: nn.Module) -> nn.Module:
        """Back to the accelerators that tensors came from; those that came from the CPU, or were loaded, stay as they are."""
        for slot in self.named_slots(module, self.key):
            device = self.original_devices.get(slot.name)
            if device is not None and device.type not in ("cpu", "meta"):
                replace(slot, slot.tensor.data.to(device))
        return module


class WholeModelHook(ModelHook):
    """Around the whole model: inputs come to its main device, the output goes back to where the inputs were.

    Args:
        device: the main device.
        skip_keys: keyword arguments (and keys of mappings) that stay where they are.
        offloads: whether any tensor is brought for each forward, or is on disk; then gradients are not recorded, unless all
            parameters are frozen: what inputs get through them is right, since autograd keeps what it needs.
        feed: told when a forward begins and ends.
    """

    def __init__(
        self, device: torch.device, skip_keys: str | Sequence[str] | None, *, offloads: bool, feed: Any
    ) -> None:
        self.execution_device = device
        self.skip_keys = [skip_keys] if isinstance(skip_keys, str) else list(skip_keys or ())
        self.offloads = offloads
        self.feed = feed
        self._entered = ThreadStack()
        """For each forward under way: where its inputs were, and whether a backward through it is refused."""

    def pre_forward(self, module: nn.Module, /, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """See ModelHook."""
        refuses = (
            self.offloads and torch.is_grad_enabled() and any(value.requires_grad for value in module.parameters())
        )
        if refuses and is_in_grad():
            raise refusal(type(module).__name__)
        if self.feed is not None:
            self.feed.start()
        inputs = (
            aligned(args, self.execution_device, self.skip_keys),
            aligned(kwargs, self.execution_device, self.skip_keys),
        )
        self._entered.items.append((find_device([args, kwargs]), refuses))
        return inputs

    @property
    def no_grad(self) -> bool:  # type: ignore[override]
        """In a forward, whether that one records no gradients; else whether one may not."""
        found: bool = self._entered.items[-1][1] if self._entered.items else self.offloads
        return found

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        """See ModelHook."""
        device, refuses = self._end()
        if device is not None:
            output = aligned(output, device, self.skip_keys)
        return without_backward(module, output) if refuses else output

    def after_failure(self, module: nn.Module) -> None:
        """See ModelHook."""
        self._end()

    def _end(self) -> tuple[torch.device | None, bool]:
        if self.feed is not None:
            self.feed.finish()
        found: tuple[torch.device | None, bool] = self._entered.items.pop()
        return found


DISPATCH_HOOKS: Final = (PlacedHook, WholeModelHook)
"""What a dispatch puts on a model, and the next one takes off."""


def guard_moves(model: nn.Module) -> None:
    """Refuse `to`, `cuda` and `cpu` on a model whose parts are on several devices, which they would bring together."""
    for name in ("to", "cuda", "cpu"):
        model.__dict__[name] = GuardedMethod(model, name, _check_move)


def _check_move(model: nn.Module, name: str, args: Any, kwargs: Any) -> None:
    if name == "to":
        device: torch.device | None = torch._C._nn._parse_to(*args, **kwargs)[0]  # noqa: SLF001  (what Module.to parses its arguments with)
    else:
        given = args[0] if args else kwargs.get("device")
        device = torch.device(name, given) if isinstance(given, int) else torch.device(given or name)
    there = {slot.tensor.device for slot in all_slots(model)}
    if device is not None and not there <= {full_device(device)}:
        raise UnsupportedError(
            f"{type(model).__name__}.{name}: the model's parts are on {', '.join(sorted(map(str, there)))}, where they were dispatched to",
            hint="dispatch it with another device_map, or call remove_hook_from_module(model, recurse=True) first",
        )
