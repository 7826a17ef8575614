"""What a rank holds of parameters, gradients and optimizer states under ZeRO, and the whole of them.

DeepSpeed lays the parameters of a group end to end and gives each rank a stretch of that; a piece is what a stretch has of one parameter.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Piece:
    """What this rank holds of one parameter."""

    flat: torch.Tensor
    """The stretch, in full precision."""
    start: int
    """Where the piece begins in the stretch."""
    offset: int
    """Where it begins in the parameter."""
    length: int

    def of(self, stretch: torch.Tensor) -> torch.Tensor:
        """This piece of a tensor that is laid out like the stretch."""
        return stretch.narrow(0, self.start, self.length)

    def cut(self, whole: torch.Tensor) -> torch.Tensor:
        """This piece of a whole tensor."""
        return whole.reshape(-1).narrow(0, self.offset, self.length)


class Parts:
    """The layout of one engine."""

    def __init__(self, zero: Any, base: torch.optim.Optimizer) -> None:
        """Args: `zero`, the engine's optimizer; `base`, the one inside that computes."""
        self.zero, self.base = zero, base
        self.divides_parameters = hasattr(zero, "fp32_partitioned_groups_flat")

    # ---- pieces -------------------------------------------------------------------------------------------------

    def piece(self, parameter: Any) -> Piece | None:
        """This rank's piece of a trained parameter; None where it has none."""
        if self.divides_parameters:
            group, start, length = self.zero.grad_position[self.zero.get_param_id(parameter)]
            offset = length * dist.get_rank()
            length = max(0, min(length, parameter.ds_numel - offset))
            flat = self.zero.fp32_partitioned_groups_flat[group]
            return Piece(flat, start, offset, length) if length else None
        mapping = getattr(parameter, "_hp_mapping", None)
        if mapping is None:
            return None
        there, here = mapping.lp_fragment_address, mapping.hp_fragment_address
        flat = self.zero.single_partition_of_fp32_groups[mapping.param_group_index]
        return Piece(flat, here.start, there.start, here.numel)

    def gradient(self, parameter: Any) -> torch.Tensor | None:
        """This rank's piece of a gradient, as the engine will use it; None where there is none."""
        piece = self.piece(parameter)
        if piece is None:
            return None
        if self.divides_parameters:
            found, _ = self.zero._get_fp32_grad_state_partition(parameter, release_swap_buffers=False)  # noqa: SLF001
            return found.view(-1)[: piece.length]  # type: ignore[no-any-return]
        mapping = parameter._hp_mapping  # noqa: SLF001
        return mapping.get_lp_grad_fragment(parameter._index_in_param_group)  # type: ignore[no-any-return]  # noqa: SLF001

    def gradients(self, parameters: Iterable[Any]) -> list[torch.Tensor]:
        """This rank's pieces of gradients."""
        found = (self.gradient(one) for one in dict.fromkeys(parameters) if one.requires_grad)
        return [one for one in found if one is not None]

    # ---- whole tensors ------------------------------------------------------------------------------------------

    def shape(self, parameter: Any) -> torch.Size:
        """The whole parameter's shape."""
        found: torch.Size = getattr(parameter, "ds_shape", parameter.shape)
        return found

    def whole(self, parameter: Any, pick: Callable[[Piece], torch.Tensor | None]) -> torch.Tensor:
        """What `pick` takes from each rank's stretch, put together. All ranks call it."""
        shape = self.shape(parameter)
        whole = torch.zeros(shape.numel(), dtype=torch.float32, device=parameter.device)
        piece = self.piece(parameter)
        stretch = None if piece is None else pick(piece)
        if piece is not None and stretch is not None:
            whole.narrow(0, piece.offset, piece.length).copy_(piece.of(stretch))
        dist.all_reduce(whole)
        return whole.view(shape)

    def master(self, parameter: Any) -> torch.Tensor:
        """The whole parameter in full precision. All ranks call it."""
        return self.whole(parameter, lambda piece: piece.flat.detach())

    def set_master(self, parameter: Any, value: torch.Tensor) -> None:
        """Put a whole parameter into this rank's piece."""
        piece = self.piece(parameter)
        if piece is not None:
            piece.of(piece.flat.detach()).copy_(piece.cut(value))

    # ---- optimizer states ---------------------------------------------------------------------------------------

    def names(self) -> dict[str, bool]:
        """What the optimizer keeps, and whether it keeps it for each element. All ranks call it: one may hold nothing of a group."""
        found: dict[str, bool] = {}
        for flat, values in self.base.state.items():
            for name, value in values.items():
                found[name] = isinstance(value, torch.Tensor) and value.shape == flat.shape
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, found)
        return {name: each for one in every for name, each in one.items()}

    def state(self, parameter: Any, names: Mapping[str, bool]) -> dict[str, Any]:
        """The whole state of one parameter. All ranks call it."""
        values: dict[str, Any] = {}
        for name, for_each in names.items():
            if for_each:
                values[name] = self.whole(parameter, lambda piece, name=name: self._kept(piece).get(name))  # type: ignore[misc]
            else:
                values[name] = next((kept[name] for kept in self.base.state.values() if name in kept), None)
        return values

    def _kept(self, piece: Piece) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.base.state.get(piece.flat, {})
        return found

    def set_state(self, parameters: Sequence[tuple[Any, Mapping[str, Any]]]) -> None:
        """Put whole states into this rank's pieces."""
        self.base.state.clear()
        for parameter, values in parameters:
            piece = self.piece(parameter)
            if piece is None:
                continue
            kept = self.base.state[piece.flat]
            for name, value in values.items():
                if isinstance(value, torch.Tensor) and value.shape == self.shape(parameter) and value.dim():
                    stretch = kept.setdefault(name, torch.zeros_like(piece.flat, requires_grad=False))
                    piece.of(stretch).copy_(piece.cut(value))
                else:
                    kept[name] = value.clone() if isinstance(value, torch.Tensor) else value

    # ---- gradients that no step has used ------------------------------------------------------------------------

    def discard(self) -> None:
        """Let go of gradients that are there."""
        self.zero.zero_grad()
        if self.divides_parameters:
            return
        self.zero.micro_step_id = -1
        for key in self.zero.averaged_gradients:
            self.zero.averaged_gradients[key] = None
            self.zero.all_grad_tensors[key] = None


def total_norm(pieces: Sequence[torch.Tensor], norm_type: float, device: torch.device) -> torch.Tensor:
    """The norm of all ranks' pieces together. All ranks call it."""
    kind = float(norm_type)
    parts = [torch.linalg.vector_norm(one, kind, dtype=torch.promote_types(one.dtype, torch.float32)) for one in pieces]
    none = torch.zeros((), dtype=torch.double, device=device)
    mine = torch.linalg.vector_norm(torch.stack(parts).double(), kind).to(device) if parts else none
    if kind == float("inf"):
        dist.all_reduce(mine, dist.ReduceOp.MAX)
        return mine
    total = mine**kind
    dist.all_reduce(total)
    return total ** (1 / kind)
