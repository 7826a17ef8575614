"""Which modules of a model are sharded as one: they are gathered before their forward and given up after it."""

import re
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from accelkit.runtime.errors import SettingError
from accelkit.runtime.strategies.fsdp_plugin import FullyShardedDataParallelPlugin

Named = list[tuple[str, nn.Module]]


def choose(model: nn.Module, plugin: FullyShardedDataParallelPlugin) -> Named:
    """The modules inside a model, in the order of their names, inner ones included; the model itself is no part of it.

    A module that shares a parameter with what lies outside it is left to what holds both. Raises SettingError for classes or names
    that the model does not have.
    """
    found = _chosen(model, plugin, [(name, module) for name, module in model.named_modules() if name])
    shared = _users(model)
    return [(name, module) for name, module in found if _owns_all(name, module, shared)]


def _chosen(model: nn.Module, plugin: FullyShardedDataParallelPlugin, inner: Named) -> Named:
    policy = plugin.auto_wrap_policy or _implied(plugin)
    if callable(policy):
        return [(name, module) for name, module in inner if policy(module)]
    if policy == "transformer_based_wrap":
        return _by_class(model, plugin.transformer_cls_names_to_wrap, inner)
    if policy == "name_based_wrap":
        return _by_name(plugin.module_names_to_wrap or (), inner)
    if policy == "size_based_wrap":
        return _by_size(model, plugin.min_num_params or 0, inner)
    return []


def _implied(plugin: FullyShardedDataParallelPlugin) -> str | Callable[..., Any]:
    """The policy whose field is given."""
    if plugin.transformer_cls_names_to_wrap:
        return "transformer_based_wrap"
    if plugin.module_names_to_wrap:
        return "name_based_wrap"
    return "size_based_wrap" if plugin.min_num_params else "no_wrap"


def _by_class(model: nn.Module, names: Sequence[str] | str | None, inner: Named) -> Named:
    wanted = set(names or getattr(model, "_no_split_modules", None) or ())
    if not wanted:
        raise SettingError(
            f"transformer_based_wrap: {type(model).__name__} has no _no_split_modules",
            hint="name the classes of its blocks: transformer_cls_names_to_wrap=[...]",
        )
    there = {type(module).__name__ for _, module in inner}
    if names and wanted - there:
        raise SettingError(
            f"transformer_cls_names_to_wrap: {', '.join(sorted(wanted - there))} not in {type(model).__name__}",
            hint=f"its modules are of {', '.join(sorted(there))}",
        )
    return [(name, module) for name, module in inner if type(module).__name__ in wanted]


def _by_name(patterns: Iterable[str], inner: Named) -> Named:
    for pattern in patterns:
        if not any(matches(name, pattern) for name, _ in inner):
            raise SettingError(
                f"module_names_to_wrap: {pattern!r} matches no module",
                hint=f"the first are {', '.join(n for n, _ in inner[:6])}",
            )
    return [(name, module) for name, module in inner if any(matches(name, pattern) for pattern in patterns)]


def matches(name: str, pattern: str) -> bool:
    """Whether a dotted name fits a pattern, part by part: `*` is any one part."""
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def _by_size(model: nn.Module, least: int, inner: Named) -> Named:
    """From the leaves up: what has enough parameters of its own and of modules that are not wrapped themselves."""
    left: dict[str, int] = {}
    chosen = []
    for name, module in reversed([("", model), *inner]):
        own = sum(parameter.numel() for parameter in module.parameters(recurse=False))
        count = own + sum(
            left[_join(name, child)] for child, _ in module.named_children() if _join(name, child) in left
        )
        takes = bool(name) and count >= least and not isinstance(module, (nn.ModuleList, nn.ModuleDict))
        left[name] = 0 if takes else count
        if takes and count:
            chosen.append((name, module))
    return chosen[::-1]


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _users(model: nn.Module) -> dict[int, list[str]]:
    """Names of all modules that hold a parameter, by its identity."""
    users: dict[int, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        for parameter in module.parameters(recurse=False):
            users.setdefault(id(parameter), []).append(name)
    return users


def _owns_all(name: str, module: nn.Module, users: dict[int, list[str]]) -> bool:
    inside = (name, f"{name}.")
    return all(
        user == inside[0] or user.startswith(inside[1])
        for parameter in module.parameters()
        for user in users[id(parameter)]
    )


def ignored(model: nn.Module, given: Any) -> set[nn.Parameter]:
    """Parameters of modules that are not sharded: the modules themselves, or an expression that fits their whole names."""
    if given is None:
        return set()
    if isinstance(given, str):
        expression = re.compile(given)
        modules = [module for name, module in model.named_modules() if expression.fullmatch(name)]
        if not modules:
            raise SettingError(f"ignored_modules={given!r} matches no module of {type(model).__name__}")
    else:
        modules = list(given)
    return {parameter for module in modules for parameter in module.parameters()}
