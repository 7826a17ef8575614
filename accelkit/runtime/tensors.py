"""Functions on nested structures of tensors that scripts of this API family use. Nothing here communicates."""

import pickle
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, NoReturn

import torch

from accelkit.runtime import structure


@dataclass(frozen=True)
class TensorInformation:
    """A tensor without its values."""

    shape: torch.Size
    dtype: torch.dtype


def is_torch_tensor(tensor: Any) -> bool:
    """Whether this is a tensor."""
    return isinstance(tensor, torch.Tensor)


def is_tensor_information(tensor_info: Any) -> bool:
    """Whether this is a :class:`TensorInformation`."""
    return isinstance(tensor_info, TensorInformation)


def is_namedtuple(data: Any) -> bool:
    """Whether this is a tuple whose items have names."""
    return isinstance(data, tuple) and hasattr(data, "_fields")


def honor_type(obj: Any, generator: Iterable[Any]) -> Any:
    """The items of `generator` in a container of the type of `obj`: a list or tuple, also one with names."""
    return structure.rebuild(obj, list(generator))


def send_to_device(
    tensor: Any,
    device: torch.device | str | int,
    non_blocking: bool = False,
    skip_keys: str | Sequence[str] | None = None,
) -> Any:
    """A nested structure on a device; values under `skip_keys` stay where they are, at every depth."""
    keys = (skip_keys,) if isinstance(skip_keys, str) else tuple(skip_keys or ())
    return structure.move(tensor, torch.device(device), non_blocking=non_blocking, skip_keys=keys)


def recursively_apply(
    func: Callable[..., Any],
    data: Any,
    *args: Any,
    test_type: Callable[[Any], bool] = torch.is_tensor,
    error_on_other_type: bool = False,
    **kwargs: Any,
) -> Any:
    """A structure in which each leaf that passes `test_type` is `func(leaf, ...)`. Other leaves stay, or raise TypeError."""

    def apply(leaf: Any) -> Any:
        if test_type(leaf):
            return func(leaf, *args, **kwargs)
        if error_on_other_type:
            name = getattr(func, "__name__", repr(func))
            raise TypeError(f"{name} does not take a leaf of type {type(leaf).__name__}")
        return leaf

    return structure.map_leaves(apply, data, test_type)


def get_data_structure(data: Any) -> Any:
    """The structure with a :class:`TensorInformation` for each tensor."""
    return recursively_apply(lambda leaf: TensorInformation(leaf.shape, leaf.dtype), data)


def get_shape(data: Any) -> Any:
    """The structure with a list of sizes for each tensor."""
    return recursively_apply(lambda leaf: list(leaf.shape), data)


def initialize_tensors(data_structure: Any) -> Any:
    """The structure with a tensor, its values undefined, for each :class:`TensorInformation`."""
    return recursively_apply(
        lambda leaf: torch.empty(leaf.shape, dtype=leaf.dtype), data_structure, test_type=is_tensor_information
    )


def find_batch_size(data: Any) -> int:
    """Length of the first dimension of the first tensor, depth first.

    Raises ValueError for a container without such a tensor, TypeError for anything else that is not a tensor.
    """
    found = structure.find_batch_size(data)
    if found is not None:
        return found
    if isinstance(data, torch.Tensor) or structure.is_container(data):
        raise ValueError(f"no tensor with a first dimension in {structure.describe(data)}")
    raise TypeError(f"find_batch_size needs a tensor, or a structure that holds one, not {type(data).__name__}")


def ignorant_find_batch_size(data: Any) -> int | None:
    """The same; None where there is no such tensor."""
    return structure.find_batch_size(data)


def find_device(data: Any) -> torch.device | None:
    """The device of the first tensor, depth first; None without one."""
    return next((leaf.device for leaf in structure.leaves(data) if isinstance(leaf, torch.Tensor)), None)


def listify(data: Any) -> Any:
    """The structure with nested Python lists (or numbers) for tensors."""
    return recursively_apply(lambda leaf: leaf.detach().cpu().tolist(), data)


def concatenate(data: Sequence[Any], dim: int = 0) -> Any:
    """Structures of tensors joined leaf by leaf; a sequence of one is its item, whatever it is."""
    return data[0] if len(data) == 1 else structure.concatenate(data, dim)


def slice_tensors(
    data: Any,
    tensor_slice: slice,
    process_index: int | None = None,  # noqa: ARG001  (what such functions are called with)
    num_processes: int | None = None,  # noqa: ARG001
) -> Any:
    """Each tensor of a structure cut along its first dimension. Raises TypeError for leaves that are not tensors."""
    return structure.slice_tensors(data, tensor_slice)


def pad_input_tensors(tensor: Any, batch_size: int, num_processes: int, dim: int = 0) -> Any:
    """Tensors whose size along `dim` is `batch_size`, with zeros behind until it divides by `num_processes`; others stay."""
    missing = -batch_size % num_processes

    def pad(leaf: torch.Tensor) -> torch.Tensor:
        if not missing or not -leaf.dim() <= dim < leaf.dim() or leaf.shape[dim] != batch_size:
            return leaf
        shape = [missing if place == dim % leaf.dim() else size for place, size in enumerate(leaf.shape)]
        return torch.cat([leaf, leaf.new_zeros(shape)], dim=dim)

    return recursively_apply(pad, tensor, error_on_other_type=True)


def convert_to_fp32(tensor: Any) -> Any:
    """Tensors of half precision as float32; everything else as it is."""
    return structure.to_float32(tensor)


class ConvertOutputsToFp32:
    """A forward whose outputs in half precision come back as float32. It cannot be pickled; `__wrapped__` is the forward."""

    def __init__(self, model_forward: Callable[..., Any]) -> None:
        self.model_forward = model_forward
        update_wrapper(self, model_forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the forward."""
        return convert_to_fp32(self.model_forward(*args, **kwargs))

    def __getstate__(self) -> NoReturn:
        raise pickle.PicklingError(
            "a model whose forward converts its outputs cannot be pickled; "
            "take the wrapper off first: unwrap_model(model, keep_fp32_wrapper=False)"
        )


def convert_outputs_to_fp32(model_forward: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls `model_forward` and gives its outputs in half precision as float32."""
    converted = ConvertOutputsToFp32(model_forward)

    def forward(*args: Any, **kwargs: Any) -> Any:
        return converted(*args, **kwargs)

    return update_wrapper(forward, model_forward)


def GatheredParameters(  # noqa: N802  (the name that users of this API family know)
    params: Any, modifier_rank: int | None = None, fwd_module: Any = None, enabled: bool = True
) -> AbstractContextManager[None]:
    """A block in which parameters are whole. No strategy here leaves them in pieces outside its own blocks: nothing to do."""
    del params, modifier_rank, fwd_module, enabled
    return nullcontext()
