"""Hooks around a module's forward: before it, after it, and the way back.

`module.forward` is replaced by an object that calls the hook; the module keeps its class and the signature of forward, and can
be copied and pickled with its hooks. The hook is `module._hf_hook` and the forward before it `module._old_forward`, which is
where other libraries of this family look.
"""

import functools
import inspect
import threading
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
from torch import nn

HOOK = "_hf_hook"
OLD_FORWARD = "_old_forward"


class ModelHook:
    """What may happen around a module's forward. Override what is needed."""

    no_grad = False
    """Whether forward runs under torch.no_grad."""

    def drops_gradients(self) -> bool:
        """The same for the forward that this thread is about to run: asked after `pre_forward`."""
        return self.no_grad

    def init_hook(self, module: nn.Module) -> nn.Module:
        """When the hook is added; returns the module."""
        return module

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Before forward; returns the arguments for it."""
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

    def drops_gradients(self) -> bool:
        """See ModelHook."""
        return any(hook.drops_gradients() for hook in self.hooks)

    def init_hook(self, module: nn.Module) -> nn.Module:
        """See ModelHook."""
        for hook in self.hooks:
            module = hook.init_hook(module)
        return module

    def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
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


class HookedForward:
    """A module's forward with its hook around it."""

    __name__ = "forward"

    def __init__(self, module: nn.Module, own: Any) -> None:
        self.module = module
        self.own = own
        """The forward that was set on the module itself; None: its class's."""

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        found: Callable[..., Any] | None = self.own
        return found or functools.partial(type(self.module).forward, self.module)

    @property
    def __code__(self) -> CodeType:
        """Of the forward itself, where torch.export looks for its name and file."""
        found: CodeType = (self.own or type(self.module).forward).__code__
        return found

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.__wrapped__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the hook and forward."""
        module = self.module
        hook: ModelHook = getattr(module, HOOK)
        args, kwargs = hook.pre_forward(module, *args, **kwargs)
        try:
            if hook.drops_gradients():
                with torch.no_grad():
                    output = self._inner(args, kwargs)
            else:
                output = self._inner(args, kwargs)
        except BaseException:
            hook.after_failure(module)
            raise
        return hook.post_forward(module, output)

    def _inner(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.own is not None:
            return self.own(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)


def add_hook_to_module(module: nn.Module, hook: ModelHook, append: bool = False) -> nn.Module:
    """Put a hook around a module's forward. A hook that is there is replaced, or comes first with `append`.

    Returns the module.
    """
    present: ModelHook | None = getattr(module, HOOK, None)
    if present is not None and append:
        hook.init_hook(module)
        setattr(module, HOOK, SequentialHook(present, hook))
        return module
    if present is not None:
        remove_hook_from_module(module)
    module = hook.init_hook(module)
    own = module.__dict__.get("forward")
    setattr(module, OLD_FORWARD, module.forward)
    setattr(module, HOOK, hook)
    module.forward = HookedForward(module, own)
    return module


def remove_hook_from_module(module: nn.Module, recurse: bool = False) -> nn.Module:
    """Take the hook off a module (with `recurse` off all below it too), with all that was added with it.

    The module is whole again: its forward is what it was, and its tensors have their values. Returns the module.
    """
    hook: ModelHook | None = getattr(module, HOOK, None)
    if hook is not None:
        hook.detach_hook(module)
        delattr(module, HOOK)
        forward = module.__dict__.pop("forward", None)
        if isinstance(forward, HookedForward) and forward.own is not None:
            module.forward = forward.own
        elif forward is not None and not isinstance(forward, HookedForward):
            module.forward = forward
        module.__dict__.pop(OLD_FORWARD, None)
    for name in [name for name, value in module.__dict__.items() if isinstance(value, GuardedMethod)]:
        del module.__dict__[name]
    if recurse:
        for child in module.children():
            remove_hook_from_module(child, recurse=True)
    return module


def remove_hook_from_submodules(module: nn.Module) -> None:
    """Take the hooks off a module and all below it."""
    remove_hook_from_module(module, recurse=True)


class GuardedMethod:
    """A method of a module that is refused while hooks look after where its tensors are."""

    def __init__(self, module: nn.Module, name: str, check: Callable[[nn.Module, str, Any, Any], None]) -> None:
        self.module = module
        self.name = name
        self.check = check

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Check, then do what the class's method does."""
        self.check(self.module, self.name, args, kwargs)
        return getattr(type(self.module), self.name)(self.module, *args, **kwargs)


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
