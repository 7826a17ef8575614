"""Tensors of which each rank holds a part (torch's DTensor): which part, whole from parts, and a part from the whole.

torch.distributed.tensor takes long to import; nothing here does until there is such a tensor.
"""

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


@dataclass(frozen=True)
class Box:
    """The part of a tensor that a rank holds, per dimension."""

    offsets: tuple[int, ...]
    lengths: tuple[int, ...]

    def cut(self, whole: torch.Tensor) -> torch.Tensor:
        """A view of that part of a whole tensor."""
        for dim, (offset, length) in enumerate(zip(self.offsets, self.lengths, strict=True)):
            if length != whole.shape[dim]:
                whole = whole.narrow(dim, offset, length)
        return whole


def is_sharded(value: Any) -> bool:
    """Whether a value is a tensor that is laid out over a mesh of ranks."""
    return isinstance(value, torch.Tensor) and hasattr(value, "placements") and hasattr(value, "device_mesh")


def has_sharded(module: nn.Module) -> bool:
    """Whether a module has such a parameter."""
    return any(is_sharded(parameter) for parameter in module.parameters())


def local(value: Any) -> torch.Tensor:
    """This rank's part; a plain tensor itself."""
    part: torch.Tensor = value.to_local() if is_sharded(value) else value
    return part


def box(tensor: Any) -> Box:
    """The part of `tensor` that this rank holds: found by arithmetic, nothing is exchanged."""
    offsets, lengths = [0] * tensor.dim(), list(tensor.shape)
    where = tensor.device_mesh.get_coordinate()
    for axis in _order(tensor.placements):
        dim, count = tensor.placements[axis].dim, tensor.device_mesh.size(axis)
        chunk = -(-lengths[dim] // count)
        start = min(where[axis] * chunk, lengths[dim])
        offsets[dim] += start
        lengths[dim] = min(chunk, lengths[dim] - start)
    return Box(tuple(offsets), tuple(lengths))


def _order(placements: Sequence[Any]) -> Iterator[int]:
    """Axes of the mesh that divide the tensor, in the order in which they do: strided ones divide what later axes have left."""
    dividing = [axis for axis, placement in enumerate(placements) if hasattr(placement, "dim")]
    strided = [axis for axis in dividing if getattr(placements[axis], "split_factor", 1) > 1]
    yield from (axis for axis in dividing if axis not in strided)
    yield from reversed(strided)


def fill(part: Any, whole: torch.Tensor) -> None:
    """Give this rank's part of `part` its values out of `whole`, in place; `whole` may be laid out as `part` is."""
    with torch.no_grad():
        if is_sharded(whole):  # laid out alike
            local(part.detach()).copy_(local(whole))
        elif is_sharded(part):
            local(part.detach()).copy_(box(part).cut(whole))
        else:
            part.copy_(whole)


def as_layout(value: torch.Tensor, layout: Any) -> Any:
    """A tensor of the shape and values of `value`, each rank with the part that it has of `layout`, on that device."""
    return _make(box(layout).cut(value).to(local(layout).device).clone(), layout, value)


def empty_as(layout: Any, dtype: torch.dtype) -> Any:
    """A tensor laid out as `layout`, without values yet."""
    return _make(torch.empty_like(local(layout.detach()), dtype=dtype), layout, layout)


def _make(part: torch.Tensor, layout: Any, whole: Any) -> Any:
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part, layout.device_mesh, layout.placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )


homes: "weakref.WeakKeyDictionary[nn.Module, torch.device]" = weakref.WeakKeyDictionary()
"""Where the parts of a sharded model lie, or will lie when it is no longer on the meta device."""


def make_real(module: nn.Module, device: torch.device) -> None:
    """Give what is on the meta device memory without values. Who holds a parameter holds it still, and ties stay."""
    _convert(module, lambda tensor: torch.empty_like(tensor, device=device) if tensor.is_meta else tensor.data)


def make_meta(module: nn.Module) -> None:
    """Let go of all values. Who holds a parameter holds it still, and ties stay."""
    _convert(module, lambda tensor: tensor.data.to("meta"))


def _convert(module: nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    future: Any = torch.__future__
    before = future.get_swap_module_params_on_conversion()
    future.set_swap_module_params_on_conversion(True)
    try:
        apply: Any = module._apply  # noqa: SLF001  (`to_empty`, for some of the tensors)
        apply(change)
    finally:
        future.set_swap_module_params_on_conversion(before)


def gathered(value: Any, *, keep: bool) -> Any:
    """The whole of a tensor, on the CPU, on ranks that `keep` it (else an empty one); anything else itself. All ranks call it."""
    if not is_sharded(value):
        return value
    with _quiet():
        whole = value.detach().full_tensor()
    return whole.cpu() if keep else whole.new_empty(0)


@contextmanager
def _quiet() -> Iterator[None]:
    """A block in which torch does not say that a tensor with two dividing axes takes two steps to gather."""
    logger = logging.getLogger("torch.distributed.tensor._redistribute")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def gradients(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Those that are there."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def total_norm(tensors: Sequence[torch.Tensor], norm_type: float) -> torch.Tensor:
    """The norm of all tensors together as one plain tensor, the same on every rank; an exchange per way of being laid out."""
    groups: dict[Any, list[torch.Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(_dividing_groups(tensor), []).append(local(tensor.detach()))
    norms = [_norm_of(parts, key, norm_type) for key, parts in groups.items()]
    if not norms:
        return torch.zeros(())
    return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms), norm_type)


def _dividing_groups(tensor: Any) -> tuple[Any, ...]:
    """The process groups among whose ranks a tensor is divided."""
    if not is_sharded(tensor):
        return ()
    placements = enumerate(tensor.placements)
    return tuple(tensor.device_mesh.get_group(axis) for axis, placement in placements if not placement.is_replicate())


def _norm_of(parts: Sequence[torch.Tensor], groups: tuple[Any, ...], norm_type: float) -> torch.Tensor:
    present = [part for part in parts if part.numel()]
    norm = nn.utils.get_total_norm(present, norm_type) if present else parts[0].new_zeros(())
    if not groups:
        return norm
    is_largest = norm_type == float("inf")
    power = norm if is_largest else norm.pow(norm_type)
    for group in groups:
        dist.all_reduce(power, dist.ReduceOp.MAX if is_largest else dist.ReduceOp.SUM, group=group)
    return power if is_largest else power.pow(1 / norm_type)


def scale(tensors: Sequence[torch.Tensor], max_norm: float, norm: torch.Tensor) -> None:
    """Multiply tensors in place so that their common norm, which is `norm`, is at most `max_norm`."""
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for part in map(local, tensors):
        part.mul_(factor.to(part.device))
