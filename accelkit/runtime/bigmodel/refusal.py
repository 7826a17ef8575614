"""Outputs through which a backward is refused: the weights behind them are not there any more."""

import copy
from typing import Any, Final

import torch
from torch import nn

from accelkit.runtime import structure
from accelkit.runtime.bigmodel.hooks import untraced
from accelkit.runtime.bigmodel.tensors import is_transformed
from accelkit.runtime.errors import UnsupportedError

_ANCHOR: Final = torch.zeros((), requires_grad=True, device="cpu")
"""What outputs hang on that are to have a backward. It never gets a gradient."""


def without_backward(module: nn.Module, output: Any) -> Any:
    """The output, through which a backward raises; also what is in a distribution. An exported program has no backward to refuse."""
    if _is_exporting():
        return output
    traced = torch.compiler.is_compiling()
    refuse: Any = _NoBackward.apply if not traced else _untraced if "Jvp" in _transforms() else _refusing

    def guard(leaf: Any) -> Any:
        if isinstance(leaf, torch.distributions.Distribution):
            made = copy.copy(leaf)
            made.__dict__.update(structure.map_leaves(guard, made.__dict__))
            return made
        if not isinstance(leaf, torch.Tensor) or leaf.requires_grad:
            return leaf
        if leaf.is_floating_point() or leaf.is_complex():
            return refuse(_ANCHOR, type(module).__name__, leaf)
        return leaf

    return structure.map_leaves(guard, output)


class _NoBackward(torch.autograd.Function):
    """The same values; a backward through them is an error that says why."""

    generate_vmap_rule = True

    @staticmethod
    def forward(anchor: torch.Tensor, name: str, value: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return (
            value.clone() if is_transformed(value) else value.data
        )  # not a view, so that the output can be changed in place

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: ARG004
        ctx.name = inputs[1]

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:  # noqa: ARG004
        return tangents[2].clone()  # forward mode needs nothing of weights that are gone

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:  # noqa: ARG004
        raise refusal(ctx.name)


@untraced
def _untraced(anchor: torch.Tensor, name: str, value: torch.Tensor) -> Any:
    """The same where a compiler looks on, which would take the tangents of a function of its own for zero."""
    return _NoBackward.apply(anchor, name, value)  # type: ignore[no-untyped-call]


@torch.library.custom_op("accelkit::refusing", mutates_args=())
def _refusing(anchor: torch.Tensor, name: str, value: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    """The same for a compiled forward: its backward is traced whether it runs or not, and may raise only when it runs."""
    return value.clone()


@torch.library.custom_op("accelkit::refuse", mutates_args=())
def _refuse(gradient: torch.Tensor, name: str) -> torch.Tensor:  # noqa: ARG001
    raise refusal(name)


@_refusing.register_fake
def _(anchor: torch.Tensor, name: str, value: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    return torch.empty_like(value)


@_refuse.register_fake
def _(gradient: torch.Tensor, name: str) -> torch.Tensor:  # noqa: ARG001
    return torch.empty((), device="cpu")  # as the anchor, whose gradient it is taken for


def _backward(ctx: Any, gradient: torch.Tensor) -> Any:
    return _refuse(gradient, ctx.name), None, None


_refusing.register_autograd(_backward, setup_context=_NoBackward.setup_context)


def _is_exporting() -> bool:
    """Whether torch.export looks on; a torch that does not say so is taken to export whenever it compiles."""
    told: bool = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)()
    return told


def refusal(name: str) -> UnsupportedError:
    """What a backward through a model of this class raises."""
    return UnsupportedError(
        f"backward through {name}, which is partly offloaded: its weights get no gradients",
        hint="train it on devices that hold all of it; to train what comes before or after it, freeze it: requires_grad_(False)",
    )


def is_in_grad() -> bool:
    """Whether this runs in a function of torch.func.grad or vjp, whose backward would take what has no gradient for zero."""
    return "Grad" in (_transforms() if torch.compiler.is_compiling() else _untraced_transforms())


def _transforms() -> list[str]:
    """Names of torch.func's transforms that are being computed."""
    stack = torch._C._functorch.get_interpreter_stack() or ()  # noqa: SLF001  (torch has no public name for it)
    return [level.key().name for level in stack]


# As torch.compiler.assume_constant_result, which imports the compiler, would: asked while it is traced, in the same transforms.
_transforms.__dict__["_dynamo_marked_constant"] = True
_untraced_transforms: Final = untraced(_transforms)
