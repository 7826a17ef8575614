"""Compiling models with torch.compile: whole, or region by region where a model repeats a block."""

import types
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from accelkit.runtime.errors import SettingError, UnsupportedError
from accelkit.runtime.settings import TorchDynamoPlugin


def make_plugin(backend: Any, plugin: TorchDynamoPlugin | None) -> TorchDynamoPlugin:
    """The plug-in in force; `dynamo_backend` is short for one. Raises SettingError when both are given."""
    if backend is not None and plugin is not None:
        raise SettingError("dynamo_backend and dynamo_plugin are both given", hint="give the backend to the plug-in")
    return plugin or TorchDynamoPlugin(backend=backend)


class Compilation:
    """What a plug-in asks for, applied to models as they are prepared."""

    def __init__(self, plugin: TorchDynamoPlugin) -> None:
        self.plugin = plugin

    def inside(self, model: nn.Module) -> nn.Module:
        """Before the model is wrapped for several ranks: with its regions compiled, where that is asked for."""
        if self._is_due(model) and self.plugin.use_regional_compilation:
            return compile_regions(model, **self.plugin.to_kwargs())
        return model

    def outside(self, model: nn.Module) -> nn.Module:
        """After the model was wrapped for several ranks: compiled as a whole, where that is asked for."""
        if self._is_due(model) and not self.plugin.use_regional_compilation:
            return _compile(model, self.plugin.to_kwargs())
        return model

    def _is_due(self, model: nn.Module) -> bool:
        inner = model.module if isinstance(model, DistributedDataParallel) else model
        return self.plugin.is_on and not (is_compiled_module(inner) or has_compiled_regions(inner))


def is_compiled_module(module: nn.Module) -> bool:
    """Whether a module is compiled as a whole: by `torch.compile(module)`, or in place by `module.compile()`."""
    return "_orig_mod" in module.__dict__["_modules"] or module.__dict__.get("_compiled_call_impl") is not None


def has_compiled_regions(module: nn.Module) -> bool:
    """Whether modules inside a module are compiled; a module that is compiled as a whole has no regions."""
    if is_compiled_module(module):
        return False
    return any(is_compiled_module(inner) for inner in module.modules() if inner is not module)


def is_repeated_blocks(module: nn.Module) -> bool:
    """Whether a module is a list of several blocks of one class."""
    return isinstance(module, nn.ModuleList) and len(module) > 1 and len({type(block) for block in module}) == 1


def has_repeated_blocks(module: nn.Module) -> bool:
    """Whether there are such lists in a module."""
    return any(is_repeated_blocks(inner) for inner in module.modules())


def compile_regions(module: nn.Module, **compile_kwargs: Any) -> nn.Module:
    """A model whose repeated blocks are compiled once for all of them, and everything beside them region by region.

    Compiling takes as long as one block does, however many there are. The result shares parameters, buffers and hooks with `module`,
    which stays as it is and is found under `_orig_mod`; names of parameters stay, too. A model without repeated blocks is compiled as
    a whole. `compile_kwargs` are those of `torch.compile`.
    """
    if not has_repeated_blocks(module):
        return _compile(module, compile_kwargs)
    made = _with_compiled_regions(module, compile_kwargs, {})
    made.__dict__["_orig_mod"] = module
    return made


def _with_compiled_regions(module: nn.Module, compile_kwargs: dict[str, Any], done: dict[int, nn.Module]) -> nn.Module:
    """A copy of a module: compiled where it holds no repeated blocks, else with its children made so. Shared modules stay shared."""
    if id(module) not in done:
        done[id(module)] = made = _copy(module)
        if not has_repeated_blocks(module):
            return _region(made, _code(), compile_kwargs)
        own, code, repeats = made.__dict__["_modules"], _code(), is_repeated_blocks(module)
        for name, child in own.items():
            if repeats and id(child) not in done:
                done[id(child)] = _region(_copy(child), code, compile_kwargs)
            own[name] = None if child is None else _with_compiled_regions(child, compile_kwargs, done)
    return done[id(module)]


def _region(module: nn.Module, code: types.CodeType, compile_kwargs: dict[str, Any]) -> nn.Module:
    """A module compiled in place: it keeps its class and the names of its parameters.

    What torch compiles is remembered per code object: blocks that share one share what was compiled, and nothing else does.
    """
    call = _entry(module)
    entry = types.FunctionType(code, call.__globals__, call.__name__, None, call.__closure__)
    module.__dict__["_compiled_call_impl"] = torch.compile(entry, **compile_kwargs)
    return module


def _entry(module: nn.Module) -> types.FunctionType:
    """A call of a module as a function of its own: torch does not look into calls of its own modules that begin with them."""

    def call_region(*args: Any, **kwargs: Any) -> Any:
        call: Any = module._call_impl  # noqa: SLF001  (what `module.compile()` compiles)
        return call(*args, **kwargs)

    assert isinstance(call_region, types.FunctionType)
    return call_region


def _code() -> types.CodeType:
    """The code of such a function, as an object of its own."""
    return _entry(nn.Identity()).__code__.replace()


def _copy(module: nn.Module) -> nn.Module:
    """Another module with the same parameters, buffers, hooks and children.

    Raises UnsupportedError where its forward was replaced, and not by a method of its own.
    """
    made: nn.Module = object.__new__(type(module))
    made.__dict__.update(module.__dict__)
    made.__dict__["_modules"] = dict(module.__dict__["_modules"])
    made.__dict__["_compiled_call_impl"] = None
    own = made.__dict__.get("forward")
    if own is not None:
        if getattr(own, "__self__", None) is not module:
            raise UnsupportedError(
                f"compile_regions: the forward of a {type(module).__name__} was replaced by something that belongs to no module",
                hint="compile the whole model (use_regional_compilation=False), or compile before forward is replaced",
            )
        made.__dict__["forward"] = types.MethodType(own.__func__, made)
    return made


def _compile(module: nn.Module, compile_kwargs: dict[str, Any]) -> nn.Module:
    made: Any = torch.compile(module, **compile_kwargs)
    compiled: nn.Module = made
    return compiled
