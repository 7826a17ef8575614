"""Device maps: which part of a model goes to which device, decided from the model, and checked against it."""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn

from accelkit.contract.placement import Room, Solution, Unit, show, solve
from accelkit.runtime.bigmodel.rooms import MaxMemory, get_balanced_memory, get_max_memory
from accelkit.runtime.bigmodel.sizes import Dtype, tensor_bytes, unsplit_classes
from accelkit.runtime.bigmodel.tensors import Slot, all_slots, is_below, join, own_slots, walk_modules
from accelkit.runtime.errors import SettingError

logger = logging.getLogger(__name__)

REACHES_IN: Final = (nn.MultiheadAttention, nn.TransformerEncoderLayer)
"""Modules of torch that use their children's weights without calling them: never split, brought in as a whole."""
HOST: Final = ("cpu", "mps", "disk")
MODES: Final = ("auto", "balanced", "balanced_low_0", "sequential")


class DeviceMap(dict[str, Any]):
    """A device map that says how it came about."""

    report: str = ""
    """What each device holds of how much, and why a part did not go to the device that was its turn."""


def infer_auto_device_map(
    model: nn.Module,
    max_memory: MaxMemory | None = None,
    no_split_module_classes: Sequence[str] | str | None = None,
    dtype: Dtype = None,
    special_dtypes: Mapping[str, Any] | None = None,
    verbose: bool = False,
    clean_result: bool = True,
    offload_buffers: bool = False,
    fallback_allocation: bool = False,  # noqa: ARG001  (the family's signature)
) -> DeviceMap:
    """Decide where each part of a model goes: accelerators by index, then the CPU, then the disk, which has no limit.

    The model is filled in in its own order. On the first accelerator with room, and on the CPU, memory for the largest layer
    that is still to come is kept free, since what is offloaded is brought in to run. Tied tensors go together and count once.

    Args:
        model: on meta or real.
        max_memory: see `get_max_memory`; a device with 0 bytes is left out.
        no_split_module_classes: names of classes whose modules stay whole; None: the model's own `_no_split_modules`.
        dtype: in which floating tensors are going to be loaded, where that is smaller.
        special_dtypes: full name of a tensor -> its own dtype.
        verbose: log the report.
        clean_result: name a module in the place of its parts where all are on one device.
        offload_buffers: whether buffers of offloaded modules are offloaded too. Otherwise they stay on the first accelerator,
            and a warning says when they do not fit there.
        fallback_allocation: accepted; a part that is too large for a device never keeps later, smaller ones out of it.

    Returns a dict from dotted names to devices; its `report` says how it came about.
    """
    limits = {place: size for place, size in get_max_memory(max_memory).items() if size > 0 or place == "disk"}
    accelerators = [place for place in limits if place not in ("cpu", "disk")]
    main = {accelerators[0] if accelerators else "cpu", "cpu"}
    rooms = [Room(place, size, place in main) for place, size in limits.items() if place != "disk"]
    rooms.append(Room("disk", float("inf")))
    units = list(units_of(model, "", unsplit_classes(model, no_split_module_classes), dtype, special_dtypes))
    solution = solve(units, rooms)
    result = DeviceMap(solution.places)
    result.report = solution.report(rooms)
    if clean_result:
        clean_device_map(result)
    _tell(result, solution, rooms, verbose)
    if accelerators and not offload_buffers:
        _check_buffers(model, result, solution, rooms, dtype, special_dtypes)
    return result


def units_of(
    module: nn.Module,
    name: str,
    unsplit: Sequence[str],
    dtype: Dtype = None,
    special: Mapping[str, Any] | None = None,
) -> Iterator[Unit]:
    """What stays whole: leaf modules, modules of certain classes, and the tensors that any other module holds itself."""
    children = list(module.named_children())
    if not children or type(module).__name__ in unsplit or isinstance(module, REACHES_IN):
        yield _unit(name, list(all_slots(module, name)), dtype, special)
        return
    own = list(own_slots(module, name))
    yield from (_unit(slot.name, [slot], dtype, special) for slot in own if not slot.is_buffer)
    for key, child in module._modules.items():  # noqa: SLF001  (named_children leaves out a second name of a module)
        if child is not None:
            yield from units_of(child, join(name, key), unsplit, dtype, special)
    yield from (_unit(slot.name, [slot], dtype, special) for slot in own if slot.is_buffer)


def _unit(name: str, slots: Sequence[Slot], dtype: Dtype, special: Mapping[str, Any] | None) -> Unit:
    return Unit(name, {id(slot.tensor): tensor_bytes(slot.name, slot.tensor, dtype, special) for slot in slots})


def _tell(result: DeviceMap, solution: Solution, rooms: Sequence[Room], verbose: bool) -> None:
    """Log how the map came about, and which devices got nothing although others had to take what was meant for them."""
    if verbose:
        logger.info("device map:\n%s", result.report)
    idle = [room for room in rooms[:-1] if not solution.used[room.place]]
    later = any(solution.used[room.place] for room in rooms[len(rooms) - 1 :])
    if idle and later:
        logger.warning(
            "nothing fits on %s although parts of the model are on disk:\n%s",
            ", ".join(str(room.place) for room in idle),
            result.report,
        )


def _check_buffers(
    model: nn.Module,
    device_map: Mapping[str, Any],
    solution: Solution,
    rooms: Sequence[Room],
    dtype: Dtype,
    special: Mapping[str, Any] | None,
) -> None:
    """Warn when the buffers of offloaded modules do not fit on the first accelerator, where they are kept."""
    buffers = {
        id(slot.tensor): tensor_bytes(slot.name, slot.tensor, dtype, special)
        for slot in all_slots(model)
        if slot.is_buffer and place_of(device_map, slot.name) in ("cpu", "disk")
    }
    needed, free = sum(buffers.values()), rooms[0].size - solution.used[rooms[0].place]
    if needed > free:
        warnings.warn(
            f"the buffers of offloaded modules take {show(needed)} on device {rooms[0].place}, which has {show(free)} left; "
            "offload_buffers=True keeps them with their modules",
            stacklevel=3,
        )


def clean_device_map(device_map: dict[str, Any], module_name: str = "") -> dict[str, Any]:
    """Name a module in the place of its parts, in place, where all of them are on one device; returns the map."""
    below = [key for key in device_map if is_below(key, module_name)]
    if len({str(device_map[key]) for key in below}) == 1 and below != [module_name]:
        place = device_map[below[0]]
        position = list(device_map.items())
        device_map.clear()
        for key, value in position:
            if key == below[0]:
                device_map[module_name] = place
            elif key not in below:
                device_map[key] = value
        return device_map
    start = f"{module_name}." if module_name else ""
    for child in dict.fromkeys(
        start + key.removeprefix(start).partition(".")[0] for key in below if key != module_name
    ):
        clean_device_map(device_map, child)
    return device_map


def place_of(device_map: Mapping[str, Any], name: str) -> Any:
    """The device of the longest key that a name lies in; None without one."""
    prefix = name
    while prefix not in device_map:
        if not prefix:
            return None
        prefix = prefix.rpartition(".")[0]
    return device_map[prefix]


def check_device_map(model: nn.Module, device_map: Mapping[str, Any]) -> None:
    """Every tensor has a device, every key is a part of the model.

    Raises SettingError (a ValueError) that names the tensors without a place; warns of keys that match nothing.
    """
    if not isinstance(device_map, Mapping):
        raise SettingError(
            f"device_map={device_map!r} is no dict from module names to devices",
            hint='{"": "cpu"} puts everything on one device; infer_auto_device_map makes one, which load_checkpoint_and_dispatch asks for',
        )
    names = [slot.name for slot in all_slots(model)]
    without = [name for name in names if place_of(device_map, name) is None]
    if without:
        raise SettingError(
            "The device_map provided does not give any device for the following parameters: " + ", ".join(without),
            hint='name each, or a module that holds it; "" stands for the whole model',
        )
    known = {name for name, _ in walk_modules(model)}.union(names)
    idle = [key for key in device_map if key not in known]
    if idle:
        warnings.warn(f"keys of the device_map match no part of the model: {', '.join(idle)}", stacklevel=2)


def check_places(device_map: Mapping[str, Any]) -> None:
    """Raise SettingError (a ValueError) for a place that is no device of this machine: found late, it leaves a model half moved."""
    for name, place in device_map.items():
        problem = None if place in (None, "disk") else _problem_of(place)
        if problem is not None:
            known = [word for word in HOST if isinstance(place, str) and word == place.strip().lower()]
            raise SettingError(
                f"device_map puts {repr(name) if name else 'the model'} on {place!r}, which {problem}",
                hint=f'did you mean "{known[0]}"?'
                if known
                else 'devices are "cpu", "disk", and accelerators: 0, "cuda:1"',
            )


def _problem_of(place: Any) -> str | None:
    """What is wrong with a device."""
    if not isinstance(place, (int, str, torch.device)) or isinstance(place, bool):
        return "is no device"
    try:
        device = torch.device(place)
    except RuntimeError:
        return "this machine does not have" if isinstance(place, int) and place >= 0 else "is no device"
    count = getattr(getattr(torch, device.type, None), "device_count", None)
    return "this machine does not have" if count is not None and not 0 <= (device.index or 0) < count() else None


def resolve_device_map(
    model: nn.Module,
    device_map: Mapping[str, Any] | str | int | torch.device | None,
    max_memory: MaxMemory | None,
    no_split_module_classes: Sequence[str] | str | None,
    dtype: Dtype,
    offload_buffers: bool,
) -> dict[str, Any] | None:
    """A device map from what a caller says: a map, one device for everything, or one of `MODES`."""
    if device_map is None:
        return None
    if isinstance(device_map, (int, torch.device)):
        return {"": device_map}
    if not isinstance(device_map, str):
        return DeviceMap(device_map) if not isinstance(device_map, DeviceMap) else device_map
    if device_map not in MODES:
        raise SettingError(
            f"device_map={device_map!r}: must be one of {', '.join(map(repr, MODES))}",
            hint='or a dict from module names to devices; {"": "cpu"} puts everything on one',
        )
    limits = max_memory
    if device_map != "sequential":
        limits = get_balanced_memory(
            model, max_memory, no_split_module_classes, dtype, low_zero=device_map == "balanced_low_0"
        )
    return infer_auto_device_map(model, limits, no_split_module_classes, dtype, offload_buffers=offload_buffers)
