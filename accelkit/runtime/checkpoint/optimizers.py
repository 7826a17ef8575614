"""States of optimizers: compared with a live optimizer, and brought into its own tensors."""

from collections.abc import Mapping
from typing import Any, Final

import torch

from accelkit.runtime import sharded
from accelkit.runtime.checkpoint import memory

_SMALL: Final = 1024
"""Elements up to which a copy costs nothing."""


def compare(saved: Any, optimizer: Any) -> list[str]:
    """What keeps a saved state from being that of a live optimizer; nothing for states of another build than torch's."""
    if not _is_standard(saved, optimizer):
        return []
    groups, live = saved["param_groups"], optimizer.param_groups
    if len(groups) != len(live):
        return [f"it has {len(groups)} groups of parameters in the checkpoint, and {len(live)} here"]
    problems = []
    for index, (theirs, mine) in enumerate(zip(groups, live, strict=True)):
        if len(theirs["params"]) != len(mine["params"]):
            problems.append(
                f"group {index} has {len(theirs['params'])} parameters there, and {len(mine['params'])} here"
            )
        missing = [name for name in optimizer.defaults if name in mine and name not in theirs]
        if missing:
            problems.append(f"group {index} has no {', '.join(missing)} there: was it a {type(optimizer).__name__}?")
    return problems or _compare_tensors(saved, optimizer)


def _compare_tensors(saved: Mapping[str, Any], optimizer: Any) -> list[str]:
    problems = []
    for index, parameter in _parameters(saved, optimizer).items():
        live = optimizer.state.get(parameter, {})
        for name, value in saved["state"].get(index, {}).items():
            there = live.get(name)
            if isinstance(value, torch.Tensor) and isinstance(there, torch.Tensor) and value.shape != there.shape:
                problems.append(
                    f"{name} of parameter {index} is {list(value.shape)} there, and {list(there.shape)} here"
                )
    return problems


def take(saved: Any, optimizer: Any) -> Any:
    """The state to call `load_state_dict` with: values are in the optimizer's own tensors where it has them already.

    What is not has memory of its own, unless `load_state_dict` copies it to another device anyway.
    """
    if not _is_standard(saved, optimizer):
        return saved
    parameters = _parameters(saved, optimizer)
    state = {
        index: _take_one(values, parameters.get(index), optimizer.state) for index, values in saved["state"].items()
    }
    return {**saved, "state": state}


def _take_one(values: Any, parameter: Any, live: Mapping[Any, Any]) -> Any:
    if not isinstance(values, dict):
        return values
    there = live.get(parameter, {}) if parameter is not None else {}
    taken = {}
    for name, value in values.items():
        if isinstance(value, torch.Tensor):
            taken[name] = _take_tensor(value, there.get(name), parameter)
        else:
            taken[name] = memory.own(value)
    return taken


def _take_tensor(value: torch.Tensor, there: Any, parameter: Any) -> torch.Tensor:
    if isinstance(there, torch.Tensor) and there.shape == value.shape and there.dtype == value.dtype:
        sharded.fill(there, value)
        return there
    if sharded.is_sharded(value):
        return value
    if sharded.is_sharded(parameter) and parameter.shape == value.shape:
        divided: torch.Tensor = sharded.as_layout(value, parameter)
        return divided
    moves = isinstance(parameter, torch.Tensor) and parameter.device.type != "cpu"
    return value if moves and value.numel() > _SMALL else value.clone()


def _is_standard(saved: Any, optimizer: Any) -> bool:
    """Whether a state has torch's form: values per parameter, by its index, and groups."""
    return (
        isinstance(saved, dict)
        and isinstance(saved.get("state"), dict)
        and isinstance(saved.get("param_groups"), list)
        and all(isinstance(group, dict) and "params" in group for group in saved["param_groups"])
        and isinstance(getattr(optimizer, "state", None), Mapping)
    )


def _parameters(saved: Mapping[str, Any], optimizer: Any) -> dict[Any, Any]:
    """The live parameter for each index of the saved state."""
    theirs = [index for group in saved["param_groups"] for index in group["params"]]
    mine = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return dict(zip(theirs, mine, strict=True))
