"""Giving a sharded model its values: the same on every rank as on rank 0, or out of rank 0's model while the others have none."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist
from torch import nn

from accelkit.runtime import sharded
from accelkit.runtime.errors import SettingError
from accelkit.runtime.state import PartialState

_BUCKET: Final = 64 * 2**20
"""Bytes of small tensors that travel together."""


@dataclass(frozen=True)
class Source:
    """Where the values of a model come from."""

    everywhere: bool
    """Every rank has values, and those of rank 0 count."""
    nowhere: bool
    """No rank has any: the model stays on the meta device until a checkpoint is loaded."""
    values: dict[str, torch.Tensor]
    """On rank 0, where it alone has values: by name, buffers included."""


def find(model: nn.Module, state: PartialState) -> Source:
    """What the ranks have of a model; all ranks call it. Raises SettingError when one that is not rank 0 has values, and another none."""
    mine = any(tensor.is_meta for tensor in _tensors(model))
    every = [bool(flag) for flag in state.operations.exchange(mine)]
    if any(every) and not all(every) and (every[0] or not all(every[1:])):
        raise SettingError(
            f"prepare: the model is on the meta device on ranks {[rank for rank, flag in enumerate(every) if flag]}, and not on the others",
            hint="have it on all ranks, on none, or on all but rank 0",
        )
    if not any(every) or all(every):
        return Source(everywhere=not any(every), nowhere=all(every), values={})
    values = dict(_named(model)) if not mine else {}
    return Source(everywhere=False, nowhere=False, values={name: tensor.data for name, tensor in values.items()})


def begin(model: nn.Module, source: Source, device: torch.device) -> None:
    """Before the model is sharded: the same values on all ranks, or none on any."""
    if source.everywhere:
        model.to(device)
        spread(model)
    elif source.values:
        sharded.make_meta(model)


def complete(model: nn.Module, source: Source, device: torch.device, init: Callable[[nn.Module], None] | None) -> None:
    """After the model was sharded: values from where they are. Where no rank has any, `init` makes them, or a checkpoint later."""
    sharded.homes[model] = device
    if source.everywhere or (source.nowhere and init is None):
        return
    sharded.make_real(model, device)
    if not source.nowhere:
        fill(model, source.values, device)
    elif init is not None:
        for module in model.modules():
            if any(True for _ in module.parameters(recurse=False)):
                init(module)


def spread(model: nn.Module) -> None:
    """Make every rank's values those of rank 0, before the model is sharded."""
    pending: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in _unique(_tensors(model)):
        same = pending.setdefault(tensor.dtype, [])
        same.append(tensor.detach())
        if sum(one.numel() for one in same) * tensor.element_size() >= _BUCKET:
            _broadcast(pending.pop(tensor.dtype))
    for same in pending.values():
        _broadcast(same)


def _broadcast(tensors: list[torch.Tensor]) -> None:
    if len(tensors) == 1 and tensors[0].is_contiguous():
        dist.broadcast(tensors[0], 0)
        return
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.broadcast(flat, 0)
    for tensor, part in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part.view(tensor.shape))


def fill(model: nn.Module, values: dict[str, torch.Tensor], device: torch.device) -> None:
    """Fill a sharded model from rank 0's values, a tensor at a time: no rank holds more than its part and one whole tensor."""
    seen: set[int] = set()
    for name, tensor in _named(model):
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        whole = values[name].to(device) if values else torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
        whole = whole.contiguous()
        dist.broadcast(whole, 0)
        sharded.fill(tensor, whole)


def _named(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _tensors(model: nn.Module) -> Iterator[torch.Tensor]:
    return (tensor for _, tensor in _named(model))


def _unique(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    return iter({id(tensor): tensor for tensor in tensors}.values())
