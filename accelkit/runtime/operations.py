"""Collective operations as functions, on the process's own state; the same as the methods of `Accelerator`."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from accelkit.runtime import devices
from accelkit.runtime.enumerations import RNGType
from accelkit.runtime.errors import DistributedOperationException, SettingError, UnsupportedError
from accelkit.runtime.state import PartialState


def gather(tensor: Any) -> Any:
    """Tensors of all ranks, joined along their first dimension; nested structures are kept."""
    return PartialState().operations.gather(tensor)


def gather_object(object: Any) -> Any:  # noqa: A002  (the name that users of this API family know)
    """Objects of all ranks, in one list; each rank brings something iterable."""
    return PartialState().operations.gather_object(object)


def gather_tensor_shape(tensor: torch.Tensor) -> list[torch.Size]:
    """The shape of every rank's tensor, in the order of ranks; they may have different numbers of dimensions."""
    return [torch.Size(shape) for shape in PartialState().operations.exchange(tuple(tensor.shape))]


def reduce(tensor: Any, reduction: str = "mean", scale: float = 1.0) -> Any:
    """Tensors reduced over all ranks ("mean", "sum", "max"), as new tensors. The default differs from `Accelerator.reduce`."""
    return PartialState().operations.reduce(tensor, reduction, scale)


def broadcast(tensor: Any, from_process: int = 0) -> Any:
    """Fill the tensors of every rank with those of rank `from_process`, in place."""
    return PartialState().operations.broadcast(tensor, from_process)


def broadcast_object_list(object_list: list[Any], from_process: int = 0) -> list[Any]:
    """Replace the items of a list by those of rank `from_process`, in place."""
    return PartialState().operations.broadcast_object_list(object_list, from_process)


def copy_tensor_to_devices(tensor: torch.Tensor | None = None) -> torch.Tensor:
    """The tensor of the one rank that brings one, on every rank's device; the others bring None.

    Raises DistributedOperationException on every rank when none or several bring one.
    """
    state = PartialState()
    offers = state.operations.exchange(None if tensor is None else (tuple(tensor.shape), tensor.dtype))
    sources = [rank for rank, offer in enumerate(offers) if offer is not None]
    if len(sources) != 1:
        raise DistributedOperationException(
            f"copy_tensor_to_devices: exactly one rank brings a tensor, but {sources or 'none'} did"
        )
    shape, dtype = offers[sources[0]]
    made = torch.empty(shape, dtype=dtype, device=state.device) if tensor is None else tensor.to(state.device)
    copied: torch.Tensor = state.operations.broadcast(made, sources[0])
    return copied


def pad_across_processes(tensor: Any, dim: int = 0, pad_index: float = 0, pad_first: bool = False) -> Any:
    """Tensors padded along `dim` to the largest size of any rank; types stay."""
    return PartialState().operations.pad(tensor, dim, pad_index, pad_first)


def wait_for_everyone() -> None:
    """Return when all ranks have called it."""
    PartialState().wait_for_everyone()


def synchronize_rng_state(rng_type: Any = None, generator: torch.Generator | None = None) -> None:
    """Give every rank the state of one of rank 0's random generators.

    `rng_type` is "torch" (the CPU's), "generator" (the one given), or a type of device of this machine. Raises
    UnsupportedError for a device that is not there, TypeError for "generator" without one.
    """
    kind = str(getattr(rng_type, "value", rng_type))
    if kind == "generator":
        if generator is None:
            raise TypeError("synchronize_rng_state('generator') needs the generator")
        generator.set_state(_of_rank_0(generator.get_state()))
    elif kind == "torch":
        torch.set_rng_state(_of_rank_0(torch.get_rng_state()))
    else:
        module, device = getattr(torch, kind, None), PartialState().device
        if kind == device.type:
            module = devices.generators(device)
        elif module is None or not getattr(module, "is_available", lambda: False)():
            raise UnsupportedError(f"synchronize_rng_state({kind!r}): this machine has no such device")
        else:
            device = torch.device(kind)
        module.set_rng_state(_of_rank_0(module.get_rng_state(device)), device)


def synchronize_rng_states(rng_types: Sequence[Any], generator: torch.Generator | None = None) -> None:
    """The same for several generators."""
    for rng_type in rng_types:
        synchronize_rng_state(rng_type, generator=generator)


def synchronizer(rng_types: Sequence[Any]) -> Callable[[], None] | None:
    """What gives every rank the states of rank 0's generators of these types; None where there is nothing to do.

    That of loaders ("generator") is not among them: they agree when they are prepared. Raises SettingError for an unknown type.
    """
    names = [str(getattr(rng_type, "value", rng_type)) for rng_type in rng_types]
    unknown = [name for name in names if name not in RNGType]
    if unknown:
        raise SettingError(
            f"rng_types={names}: {unknown[0]!r} is not known", hint=f"known are {', '.join(RNGType.list())}"
        )
    chosen = [name for name in names if name != RNGType.GENERATOR.value]
    return partial(synchronize_rng_states, chosen) if chosen and PartialState().num_processes > 1 else None


def _of_rank_0(state: torch.Tensor) -> torch.Tensor:
    sent: torch.Tensor = PartialState().operations.broadcast_object_list([state])[0]
    return sent
