"""Hooks around a module's forward: before it, after it, and the way back.

`module.forward` is replaced by an object that calls the hook; the module keeps its class and the signature of forward, and can
be copied and pickled with its hooks. The hook is `module._hf_hook` and the forward before it `module._old_forward`, which is
where other libraries of this family look.
"""

import functools
import inspect
import sys
import threading
from collections.abc import Callable
from types import CodeType, MethodType
from typing import Any

import torch
from torch import nn

HOOK = "_hf_hook"
OLD_FORWARD = "_old_forward"
DEVICE_MAP = "hf_device_map"
HOOKED_FORWARD = "_hooked_forward"
"""Which of a module's hooked forwards is the present one. Others may call one that is not any more: it is forward alone then."""


class ModelHook:
    """What may happen around a module's forward. Override what is needed."""

    no_grad = False
    """Whether forward runs under torch.no_grad; asked after `pre_forward`."""

    def init_hook(self, module: nn.Module) -> nn.Module:
        """When the hook is added; returns the module."""
        return module

    def pre_forward(self, module: nn.Module, /, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Before forward; returns the arguments for it. With `module` by position alone, as here, forward may have one of that name."""
        return args, kwargs

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        """After forward; returns what the caller gets."""
        return output

    def after_failure(self, module: nn.Module) -> None:
        """In the place of `post_forward` when forward raised."""

    def detach_hook(self, module: nn.Module) -> nn.Module:
        """When the hook is removed; returns the module."""
        return module


class SequentialHook(ModelHook):
    """Several hooks as one: each step goes through them in order."""

    def __init__(self, *hooks: ModelHook) -> None:
        self.hooks = hooks

    @property
    def no_grad(self) -> bool:  # type: ignore[override]
        """Whether any of them wants it."""
        return any(hook.no_grad for hook in self.hooks)

    def init_hook(self, module: nn.Module) -> nn.Module:
        """See ModelHook."""
        for hook in self.hooks:
            module = hook.init_hook(module)
        return module

    def pre_forward(self, module: nn.Module, /, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """See ModelHook."""
        entered: list[ModelHook] = []
        try:
            for hook in self.hooks:
                args, kwargs = hook.pre_forward(module, *args, **kwargs)
                entered.append(hook)
        except BaseException:
            for hook in entered:
                hook.after_failure(module)
            raise
        return args, kwargs

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        """See ModelHook."""
        for number, hook in enumerate(self.hooks):
            try:
                output = hook.post_forward(module, output)
            except BaseException:
                for later in self.hooks[number + 1 :]:
                    later.after_failure(module)
                raise
        return output

    def after_failure(self, module: nn.Module) -> None:
        """See ModelHook."""
        for hook in self.hooks:
            hook.after_failure(module)

    def detach_hook(self, module: nn.Module) -> nn.Module:
        """See ModelHook."""
        for hook in self.hooks:
            module = hook.detach_hook(module)
        return module


class PlainForward:
    """A module's forward. It says of itself what the forward does: name, text, annotations, signature.

    Unlike a method it can be pickled whatever its function is called: that of a list of parameters, or one made by a decorator.
    """

    __name__ = "forward"

    def __init__(self, module: nn.Module, own: Any) -> None:
        self.module = module
        self.own = own
        """The forward that was set on the module itself; None: its class's."""
        self._look_alike()

    def _look_alike(self) -> None:
        forward = self.own or type(self.module).forward
        for name in functools.WRAPPER_ASSIGNMENTS:
            if hasattr(forward, name):
                self.__dict__[name] = getattr(forward, name)

    def __getstate__(self) -> dict[str, Any]:
        return {"module": self.module, "own": self.own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._look_alike()

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        found: Callable[..., Any] | None = self.own
        return found or MethodType(type(self.module).forward, self.module)

    @property
    def __code__(self) -> CodeType:
        """Of the forward itself, where torch.export looks for its name and file."""
        found: CodeType = (self.own or type(self.module).forward).__code__
        return found

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.__wrapped__)

    @property
    def __func__(self) -> Callable[..., Any]:
        """The function that is bound, as of a method."""
        found: Callable[..., Any] = self.own or type(self.module).forward
        return found

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run it."""
        return self._inner(args, kwargs)

    def _inner(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.own is not None:
            return self.own(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)


class HookedForward(PlainForward):
    """A module's forward with its hook around it."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the hook and forward."""
        module = self.module
        present = module.__dict__
        hook: ModelHook | None = present.get(HOOK)
        if hook is None or present.get(HOOKED_FORWARD) is not self:
            return self._inner(args, kwargs)
        args, kwargs = hook.pre_forward(module, *args, **kwargs)
        try:
            if hook.no_grad:
                with torch.no_grad():
                    output = self._inner(args, kwargs)
            else:
                output = self._inner(args, kwargs)
        except BaseException:
            hook.after_failure(module)
            raise
        return hook.post_forward(module, output)


def hook_of(module: nn.Module) -> ModelHook | None:
    """The module's own hook. A wrapper that hands on the attributes of what it wraps does not have those hooks."""
    found: ModelHook | None = module.__dict__.get(HOOK)
    return found


def add_hook_to_module(module: nn.Module, hook: ModelHook, append: bool = False) -> nn.Module:
    """Put a hook around a module's forward. A hook that is there is replaced, or comes first with `append`.

    Returns the module.
    """
    present = hook_of(module)
    if present is not None and append:
        hook.init_hook(module)
        module.__dict__[HOOK] = SequentialHook(present, hook)
        return module
    if present is not None:
        remove_hook_from_module(module)
    module = hook.init_hook(module)
    own = module.__dict__.get("forward")
    forward, old = HookedForward(module, own), PlainForward(module, None) if own is None else own
    module.__dict__.update({OLD_FORWARD: old, HOOK: hook, HOOKED_FORWARD: forward, "forward": forward})
    return module


def remove_hook_from_module(module: nn.Module, recurse: bool = False) -> nn.Module:
    """Take the hook off a module (with `recurse` off all below it too), with all that was added with it.

    The module is whole again: its forward is what it was, or what somebody set after the hook, without the hook. Its tensors have
    their values. Returns the module.
    """
    hook = hook_of(module)
    if hook is not None:
        hook.detach_hook(module)
        del module.__dict__[HOOK]
        _restore_forward(module)
    remove_additions(module)
    if recurse:
        module.__dict__.pop(DEVICE_MAP, None)
        for child in module.children():
            remove_hook_from_module(child, recurse=True)
    return module


def remove_hooks_of(model: nn.Module, kinds: tuple[type[ModelHook], ...]) -> None:
    """Take hooks of these kinds off a model and all below it, with all that was added with them. Tensors stay where they are."""
    for module in model.modules():
        present = hook_of(module)
        found = [] if present is None else flat(present)
        kept = [hook for hook in found if not isinstance(hook, kinds)]
        remove_additions(module)
        if len(kept) == len(found):
            continue
        if kept:
            module.__dict__[HOOK] = kept[0] if len(kept) == 1 else SequentialHook(*kept)
        else:
            del module.__dict__[HOOK]
            _restore_forward(module)


def flat(hook: ModelHook) -> list[ModelHook]:
    """The hooks that one is made of, in order."""
    return [inner for each in hook.hooks for inner in flat(each)] if isinstance(hook, SequentialHook) else [hook]


def remove_additions(module: nn.Module) -> None:
    """Take off a module what was added to it beside a hook."""
    for table in (module.__dict__, module.__dict__.get("_forward_pre_hooks", {})):
        for key in [key for key, value in list(table.items()) if isinstance(value, Addition)]:
            table.pop(key, None)


def _restore_forward(module: nn.Module) -> None:
    """Take off what calls the hook. What somebody set around it since stays, and calls forward alone from now on."""
    present = module.__dict__
    old, hooked = present.pop(OLD_FORWARD, None), present.pop(HOOKED_FORWARD, None)
    forward = present.get("forward")
    if forward is not None and forward is hooked:
        own = hooked.own
    elif old is not None and (
        hooked is None or getattr(forward, "__wrapped__", None) is old
    ):  # another of this family's
        own = None if getattr(old, "__func__", None) is type(module).forward else old
    else:
        return
    present.pop("forward", None)
    if own is not None:
        present["forward"] = own


def remove_hook_from_submodules(module: nn.Module) -> None:
    """Take the hooks off a module and all below it."""
    remove_hook_from_module(module, recurse=True)


class Addition:
    """What a module gets beside its hook: an attribute or a hook of torch's kind. It goes with the hook, or alone."""


class GuardedMethod(Addition):
    """A method of a module that is refused while hooks look after where its tensors are."""

    def __init__(self, module: nn.Module, name: str, check: Callable[[nn.Module, str, Any, Any], None]) -> None:
        self.module = module
        self.name = name
        self.check = check

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Check, then do what the class's method does."""
        self.check(self.module, self.name, args, kwargs)
        return getattr(type(self.module), self.name)(self.module, *args, **kwargs)


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keep a compiler out of a function that moves weights about. What would do so, torch.compiler.disable, imports the compiler."""
    disabled: list[Callable[..., Any]] = []

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        if not disabled and "torch._dynamo" in sys.modules:
            disabled.append(torch.compiler.disable(function))  # type: ignore[no-untyped-call]
        return (disabled[0] if disabled else function)(*args)

    call.__dict__["_torchdynamo_disable"] = True
    return call


class ThreadStack(threading.local):
    """Values that each thread pushes and pops by itself. A copy starts empty."""

    def __init__(self) -> None:
        self.items: list[Any] = []

    def __reduce__(self) -> Any:
        return ThreadStack, ()


class Users:
    """Counts who is using something, over threads. A copy starts at none."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.count = 0

    def __reduce__(self) -> Any:
        return Users, ()
