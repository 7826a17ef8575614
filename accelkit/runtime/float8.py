"""Computing linear layers in 8-bit floats, by torchao."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import nn

from accelkit.runtime.available import is_torchao_available
from accelkit.runtime.devices import Kind
from accelkit.runtime.errors import UnsupportedError
from accelkit.runtime.settings import AORecipeKwargs

_MULTIPLE = 16
"""Sizes that the kernels take."""


def require(kind: Kind, recipe: AORecipeKwargs) -> None:
    """Raise UnsupportedError when this machine cannot do it: no torchao, or a device without 8-bit floats.

    A recipe whose config says `emulate` computes on any device, slowly.
    """
    if not is_torchao_available():
        raise UnsupportedError(
            "mixed_precision='fp8' is not available: it needs torchao 0.6.1 or later, which is not installed",
            hint="pip install --no-deps torchao, or use no, bf16 or fp16",
        )
    if not kind.supports("fp8") and not getattr(recipe.config, "emulate", False):
        raise UnsupportedError(
            f"mixed_precision='fp8' is not available on this {kind.name} device, which cannot compute in 8-bit floats",
            hint="use bf16; or, to try a script out, AORecipeKwargs(config=Float8LinearConfig(emulate=True))",
        )


def convert_model_to_fp8_ao(
    model: nn.Module, config: Any = None, module_filter_func: Callable[[nn.Module, str], bool] | None = None
) -> nn.Module:
    """Replace linear layers of the model, in place, by ones that multiply in 8 bits; parameters stay the same objects.

    Without a filter all are replaced but the first, the last, and those with a size that is not a multiple of 16.
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    chosen = config if config is not None else Float8LinearConfig(pad_inner_dim=True)
    wanted = module_filter_func or partial(filter_linear_layers, layers_to_filter=find_first_last_linear_layers(model))
    converted: nn.Module = convert_to_float8_training(model, config=chosen, module_filter_fn=wanted)
    return converted


def convert(model: nn.Module, recipe: AORecipeKwargs) -> None:
    """Make the model's linear layers multiply in 8 bits, once."""
    if has_ao_layers(model):
        return
    config = recipe.config
    if config is None:
        from torchao.float8 import Float8LinearConfig

        config = Float8LinearConfig(
            pad_inner_dim=recipe.pad_inner_dim, enable_fsdp_float8_all_gather=recipe.enable_fsdp_float8_all_gather
        )
    convert_model_to_fp8_ao(model, config, recipe.module_filter_func)


def find_first_last_linear_layers(model: nn.Module) -> tuple[str | None, str | None]:
    """Names of the first and the last linear layer, in the order in which the model holds them."""
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return (names[0], names[-1]) if names else (None, None)


def filter_linear_layers(module: nn.Module, fqn: str, layers_to_filter: Sequence[str | None]) -> bool:
    """Whether a linear layer is to be replaced: it is not among `layers_to_filter`, and its sizes are multiples of 16."""
    if fqn in layers_to_filter or not isinstance(module, nn.Linear):
        return False
    return module.in_features % _MULTIPLE == 0 and module.out_features % _MULTIPLE == 0


def has_ao_layers(model: nn.Module) -> bool:
    """Whether any layer multiplies in 8 bits already."""
    return any(type(module).__name__ == "Float8Linear" for module in model.modules())
