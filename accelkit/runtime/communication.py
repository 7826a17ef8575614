"""The collective operations of `Accelerator`, as methods."""

from abc import abstractmethod
from typing import Any

from accelkit.runtime import metrics
from accelkit.runtime.collectives.nested import NestedCollectives
from accelkit.runtime.data.loader import Iteration
from accelkit.runtime.data.shard import Tail
from accelkit.runtime.gradients import GradientState
from accelkit.runtime.strategies.base import Strategy


class CommunicationMethods:
    """Methods that all ranks call together, in the same order."""

    gradient_state: GradientState
    _strategy: Strategy
    _is_triggered: bool

    @property
    @abstractmethod
    def operations(self) -> NestedCollectives:
        """Collective operations on nested structures."""

    def set_trigger(self) -> None:
        """Raise a flag on this rank; :meth:`check_trigger` shows it to all."""
        self._is_triggered = True

    def check_trigger(self) -> bool:
        """Whether any rank has raised its flag since the last check, which lowers it. All ranks must call it."""
        found = self.operations.any(self._is_triggered)
        self._is_triggered = False
        return found

    def gather(self, tensor: Any) -> Any:
        """Tensors of all ranks joined along their first dimension, in the order of ranks; nested structures are kept.

        A tensor without dimensions becomes one of as many as there are ranks. One rank: the argument itself. Raises
        DistributedOperationException on every rank, with all shapes, when shapes or types differ, and TypeError for leaves
        that are not tensors.
        """
        return self.operations.gather(tensor)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """What all ranks computed in this step of the innermost prepared loader, each sample once, in the order of samples.

        Samples that were repeated to fill the last round are cut: of tensors whose first dimension counts the samples of this rank's
        batch, and of lists of that length. Anything else is gathered whole. Objects that are not tensors are gathered as well, in the
        same structure; with `use_gather_object` every list counts as a list of samples, whatever it holds.
        """
        iteration = self.gradient_state.iteration
        tail = iteration.tail if isinstance(iteration, Iteration) else None
        shares, size = self._strategy.data_size, self.operations.carrier.size
        if isinstance(iteration, Iteration):
            if tail is None and (
                shares != size or iteration.loader.is_own
            ):  # a full round, too: batches are what they are
                tail = Tail((-1,) * shares, (-1,) * shares)
            if tail is not None and shares != size:  # ranks with one batch bring it once
                tail = tail.spread([*map(self._strategy.share_of, range(size))])
        return metrics.gather_for_metrics(self.operations, input_data, tail, use_gather_object=use_gather_object)

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: float = 0, pad_first: bool = False) -> Any:
        """Tensors padded along `dim` to the largest size of any rank; types stay."""
        return self.operations.pad(tensor, dim, pad_index, pad_first)

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Tensors reduced over all ranks ("sum", "mean", "max") and multiplied by `scale`, as new tensors."""
        return self.operations.reduce(tensor, reduction, scale)

    def broadcast(self, tensor: Any, from_process: int = 0) -> Any:
        """Fill the tensors of every rank with those of rank `from_process`, in place."""
        return self.operations.broadcast(tensor, from_process)

    def gather_object(self, object: Any) -> Any:  # noqa: A002  (the name that users of this API family know)
        """Objects of all ranks, in one list; each rank brings something iterable. One rank: the argument itself."""
        return self.operations.gather_object(object)

    def broadcast_object_list(self, object_list: list[Any], from_process: int = 0) -> list[Any]:
        """Replace the items of a list by those of rank `from_process`, in place, and return it."""
        return self.operations.broadcast_object_list(object_list, from_process)
