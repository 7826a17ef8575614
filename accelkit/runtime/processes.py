"""What follows from a process's place among others: who prints, who goes first, who gets which part."""

import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

import torch

from accelkit.runtime import structure
from accelkit.runtime.errors import SettingError


class ProcessActions:
    """Methods of everything that knows its rank. Decorated functions decide when they are called, not when they are decorated."""

    @property
    @abstractmethod
    def num_processes(self) -> int:
        """Ranks of the run."""

    @property
    @abstractmethod
    def process_index(self) -> int:
        """This rank, from 0."""

    @property
    @abstractmethod
    def local_process_index(self) -> int:
        """This rank among those of its node, from 0."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The device of this rank."""

    @abstractmethod
    def wait_for_everyone(self) -> None:
        """Return when all ranks have called it."""

    @property
    def use_distributed(self) -> bool:
        """Whether there are other ranks."""
        return self.num_processes > 1

    @property
    def is_main_process(self) -> bool:
        """Whether this is rank 0."""
        return self.process_index == 0

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is the first rank of its node."""
        return self.local_process_index == 0

    @property
    def is_last_process(self) -> bool:
        """Whether this is the last rank."""
        return self.process_index == self.num_processes - 1

    def print(self, *args: Any, **kwargs: Any) -> None:
        """`print`, once per node: by its first rank."""
        if self.is_local_main_process:
            print(*args, **kwargs)

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """A block that rank 0 runs through before the others enter it."""
        yield from self._goes_first(self.is_main_process)

    @contextmanager
    def local_main_process_first(self) -> Iterator[None]:
        """A block that the first rank of each node runs through before the others enter it."""
        yield from self._goes_first(self.is_local_main_process)

    def _goes_first(self, first: bool) -> Iterator[None]:
        if not first:
            self.wait_for_everyone()
        try:
            yield
        finally:
            if first:  # also when its block failed: the others would wait for ever
                self.wait_for_everyone()

    def on_main_process(self, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Decorator: only rank 0 runs the function; elsewhere the call returns None."""
        return self._only(function, lambda: self.is_main_process)

    def on_local_main_process(self, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Decorator: only the first rank of each node runs the function; elsewhere the call returns None."""
        return self._only(function, lambda: self.is_local_main_process)

    def on_last_process(self, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Decorator: only the last rank runs the function; elsewhere the call returns None."""
        return self._only(function, lambda: self.is_last_process)

    def on_process(
        self, function: Callable[..., Any] | None = None, process_index: int | None = None
    ) -> Callable[..., Any]:
        """Decorator: only rank `process_index` runs the function; a process alone always does."""
        return self._only(function, lambda: self.process_index == process_index)

    def on_local_process(
        self, function: Callable[..., Any] | None = None, local_process_index: int | None = None
    ) -> Callable[..., Any]:
        """Decorator: only the rank of that index on each node runs the function; a process alone always does."""
        return self._only(function, lambda: self.local_process_index == local_process_index)

    def _only(self, function: Callable[..., Any] | None, chosen: Callable[[], bool]) -> Callable[..., Any]:
        if function is None:
            return partial(self._only, chosen=chosen)

        @wraps(function)
        def run_if_chosen(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) if not self.use_distributed or chosen() else None

        return run_if_chosen

    @contextmanager
    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> Iterator[Any]:
        """A block in which this rank has its part of `inputs`.

        That is a list, tuple, range, tensor, numpy array, data set with a `select` of indices, or a dict of these, then of equal length.
        The first ranks have one more where it does not divide; with fewer items than ranks some parts are empty. With
        `apply_padding` such shorter parts are filled with the last item of the whole. Anything else is given whole, but
        sets, which have no order, are refused.
        """
        yield split(inputs, self.process_index, self.num_processes, apply_padding=apply_padding)


def split(inputs: Any, rank: int, size: int, *, apply_padding: bool = False) -> Any:
    """The part of `inputs` that rank `rank` of `size` gets. The input is not changed; the part has its type.

    Raises ValueError for a dict whose values differ in length, and SettingError for a set.
    """
    if size == 1:
        return inputs
    _refuse_sets(inputs)
    if isinstance(inputs, Mapping):
        return _split_mapping(inputs, rank, size, apply_padding)
    if isinstance(inputs, torch.Tensor):
        return _split_tensor(inputs, rank, size, apply_padding) if inputs.dim() else inputs
    if isinstance(inputs, range) or _is_array(inputs):
        return _split_sequence(inputs, rank, size, apply_padding)
    if hasattr(inputs, "select") and hasattr(inputs, "__len__"):
        return inputs.select(split(list(range(len(inputs))), rank, size, apply_padding=apply_padding))
    if not isinstance(inputs, (list, tuple)) or hasattr(inputs, "_fields"):
        return inputs
    return structure.rebuild(inputs, _split_list(list(inputs), rank, size, apply_padding))


def _refuse_sets(inputs: Any) -> None:
    if isinstance(inputs, (set, frozenset)):
        raise SettingError(
            f"split_between_processes: a {type(inputs).__name__} has no order that is the same on every rank",
            hint="give a list, for example sorted(...) of it",
        )


def _split_list(whole: list[Any], rank: int, size: int, apply_padding: bool) -> list[Any]:
    part = whole[_piece(len(whole), rank, size)]
    missing = -(-len(whole) // size) - len(part)
    return part + whole[-1:] * missing if apply_padding else part


def _split_mapping(inputs: Mapping[Any, Any], rank: int, size: int, apply_padding: bool) -> Any:
    lengths = {key: len(value) for key, value in inputs.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"split_between_processes: the values of a dict must be of equal length, but have {lengths}")
    return structure.rebuild(
        inputs, [split(value, rank, size, apply_padding=apply_padding) for value in inputs.values()]
    )


def _split_tensor(whole: torch.Tensor, rank: int, size: int, apply_padding: bool) -> torch.Tensor:
    part = whole[_piece(len(whole), rank, size)]
    missing = -(-len(whole) // size) - len(part)
    if not apply_padding or not missing:
        return part
    return torch.cat([part, whole[-1:].expand(missing, *whole.shape[1:])])


def _split_sequence(whole: Any, rank: int, size: int, apply_padding: bool) -> Any:
    """A part of a range or array: of its type, but a list where a range had to be padded."""
    if _is_array(whole) and not whole.ndim:
        return whole
    part = whole[_piece(len(whole), rank, size)]
    missing = -(-len(whole) // size) - len(part)
    if not apply_padding or not missing:
        return part
    places = _split_list(list(range(len(whole))), rank, size, apply_padding)
    return [whole[place] for place in places] if isinstance(whole, range) else whole[places]


def _is_array(value: Any) -> bool:
    numpy: Any = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _piece(length: int, rank: int, size: int) -> slice:
    each, more = divmod(length, size)
    start = rank * each + min(rank, more)
    return slice(start, start + each + int(rank < more))
