"""Dividing layers among the ranks of the tensor-parallel axis, by a plan that the script or the model gives."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from accelkit.runtime.errors import SettingError
from accelkit.runtime.parallelism import ParallelismConfig
from accelkit.runtime.strategies.wrap_policy import matches


def apply(model: nn.Module, mesh: Any, layout: ParallelismConfig) -> None:
    """Divide the layers that the plan names, in place; all ranks of the axis call it with the same values.

    Raises SettingError without a plan, for names that match nothing, and for layers that do not divide.
    """
    from torch.distributed.tensor.parallel import parallelize_module

    given = layout.tp_handler.plan if layout.tp_handler is not None else None
    plan = given if given is not None else plan_of(model)
    if not plan:
        raise SettingError(
            f"tp_size={layout.tp_size}: {type(model).__name__} brings no plan of its own",
            hint='ParallelismConfig(tp_handler=TorchTensorParallelConfig(plan={"layers.*.up": "colwise", "layers.*.down": "rowwise"}))',
        )
    names = [name for name, _ in model.named_modules()]
    missing = [pattern for pattern in plan if not any(matches(name, pattern) for name in names)]
    if missing and given is not None:
        raise SettingError(f"tensor-parallel plan: {', '.join(missing)} matches no module of {type(model).__name__}")
    chosen = {pattern: style_of(pattern, style) for pattern, style in plan.items() if pattern not in missing}
    _refuse_uneven(model, chosen, layout.tp_size)
    parallelize_module(model, mesh, chosen)


def plan_of(model: nn.Module) -> Mapping[str, Any]:
    """The plan that a model brings: `tp_plan`, or what transformers keeps under `_tp_plan`; empty where it has none."""
    for name in ("tp_plan", "_tp_plan"):
        found = getattr(model, name, None)
        if isinstance(found, Mapping) and found:
            return found
    return {}


def style_of(name: str, style: Any) -> Any:
    """Torch's style by its short name; a style itself. Raises SettingError for an unknown name."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel

    known: dict[str, Any] = {
        "colwise": ColwiseParallel,
        "rowwise": RowwiseParallel,
        "colwise_rep": lambda: ColwiseParallel(output_layouts=Replicate()),
        "colwise_gather_output": lambda: ColwiseParallel(output_layouts=Replicate()),
        "rowwise_rep": lambda: RowwiseParallel(input_layouts=Replicate()),
        "rowwise_split_input": lambda: RowwiseParallel(input_layouts=Replicate()),
        "sequence_parallel": SequenceParallel,
    }
    if not isinstance(style, str):
        return style
    if style not in known:
        raise SettingError(
            f"tensor-parallel plan: {name}: {style!r} is not known", hint=f"known are {', '.join(known)}"
        )
    return known[style]()


def _refuse_uneven(model: nn.Module, plan: Mapping[str, Any], size: int) -> None:
    """Layers that would give ranks parts of other sizes: what computes on the parts would not fit."""
    axes = {"ColwiseParallel": ("out_features", "embedding_dim"), "RowwiseParallel": ("in_features",)}
    for name, module in model.named_modules():
        for pattern, style in plan.items():
            width = next(
                (getattr(module, axis) for axis in axes.get(type(style).__name__, ()) if hasattr(module, axis)), 0
            )
            if matches(name, pattern) and width % size:
                raise SettingError(
                    f"tensor-parallel plan: {name} has a width of {width}, which {size} ranks cannot divide",
                    hint="leave it out of the plan, or use a tp_size that divides it",
                )
