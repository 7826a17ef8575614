"""Putting a model on its devices, with the hooks that make it run there.

Every tensor has one place, and is a real tensor there: on an accelerator, in the CPU's memory, or a view of a file ("disk").
What is not on the device that its module runs on is brought there for each forward. On the CPU nothing is brought: a module
computes with the views, and hooks only read ahead. So state dicts, copies and pickles of a dispatched model are complete, and
removing the hooks leaves a whole model.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from accelkit.runtime.bigmodel.align import holders
from accelkit.runtime.bigmodel.bytesize import convert_file_size_to_int
from accelkit.runtime.bigmodel.collecting import uncollected
from accelkit.runtime.bigmodel.device_map import check_device_map, check_places, place_of, resolve_device_map
from accelkit.runtime.bigmodel.hooks import add_hook_to_module, remove_hooks_of
from accelkit.runtime.bigmodel.loading import carry_out, check_rest, open_for, prepare
from accelkit.runtime.bigmodel.mapping import region_of
from accelkit.runtime.bigmodel.offload_files import OffloadedWeightsLoader, load_offload_index, offload_state_dict
from accelkit.runtime.bigmodel.placed import DISPATCH_HOOKS, PlacedHook, WholeModelHook, guard_moves
from accelkit.runtime.bigmodel.prefetch import Member, Readahead
from accelkit.runtime.bigmodel.rooms import MaxMemory
from accelkit.runtime.bigmodel.sizes import Dtype
from accelkit.runtime.bigmodel.tensors import FIRST_FORWARD, Slot, all_slots, full_device, own_slots, replace
from accelkit.runtime.bigmodel.transfer import Transfer
from accelkit.runtime.bigmodel.warming import read_at_first_forward
from accelkit.runtime.errors import SettingError, UnsupportedError

OffloadIndex = Mapping[str, Mapping[str, Any]]


def dispatch_model(
    model: nn.Module,
    device_map: Mapping[str, Any],
    main_device: torch.device | str | int | None = None,
    state_dict: Mapping[str, torch.Tensor] | None = None,
    offload_dir: str | Path | None = None,
    offload_index: OffloadIndex | None = None,
    offload_buffers: bool = False,
    skip_keys: str | Sequence[str] | None = None,
    preload_module_classes: Sequence[str] | None = None,
    force_hooks: bool = False,
    *,
    resident_memory: int | str | None = None,
) -> nn.Module:
    """Put each part of a model on its device and make the model run there. A former dispatch is over; other hooks stay.

    Args:
        model: real, or on meta where `state_dict` or the offload folder has the values.
        device_map: name -> device, "cpu" or "disk". A map to one device (not the disk) only moves the model.
        main_device: where parts for the CPU and the disk run; None: the first accelerator of the map, else the CPU.
        state_dict: values of tensors that are on meta.
        offload_dir: where weights for the disk are written, unless they are views of files already. What lies there
            (index.json) is used for tensors that are on meta, and written anew for those that have a value.
        offload_index: entries in the place of that index.json.
        offload_buffers: whether buffers of offloaded modules are offloaded too; else they stay where the module runs. Those for
            the disk stay in memory where there is no offload_dir to write them to.
        skip_keys: keyword arguments (and keys of mappings) that no module moves to its device.
        preload_module_classes: classes whose modules are brought as a whole, since they use tensors of modules below.
        force_hooks: hooks also for a map to one device.
        resident_memory: bytes, or a text such as "2GiB", that weights on disk may take in memory at once when they run on the
            CPU; None: as much as the system gives, which takes pages back when it needs them.

    Returns the model, with `hf_device_map`. When anything is offloaded, a backward through it is refused unless all parameters
    are frozen, which gives inputs their gradients. Raises SettingError (a ValueError) for tensors without a place or a value,
    or a missing offload_dir.
    """
    check_device_map(model, device_map)
    check_places(device_map)
    places = set(device_map.values())
    if len(places) == 1 and places != {"disk"} and main_device is None and not force_hooks:
        _refuse_empty([slot.name for slot in all_slots(model) if slot.tensor.is_meta])
        remove_hooks_of(model, DISPATCH_HOOKS)
        model.to(next(iter(places)))
        read_at_first_forward(model)
        model.hf_device_map = dict(device_map)  # type: ignore[assignment]
        return model
    _refuse_lazy(model)
    main = _main_device(device_map, main_device)
    loader = _values(state_dict, offload_dir, offload_index)
    budget = None if resident_memory is None else convert_file_size_to_int(resident_memory)
    before = {slot.name: slot.tensor.device for slot in all_slots(model)}
    _place_all(model, device_map, main, loader, offload_dir, offload_buffers)
    remove_hooks_of(model, DISPATCH_HOOKS)
    _add_hooks(model, device_map, main, before, skip_keys, preload_module_classes, budget)
    model.hf_device_map = dict(device_map)  # type: ignore[assignment]
    return model


@uncollected()
def load_checkpoint_and_dispatch(
    model: nn.Module,
    checkpoint: str | Path,
    device_map: Mapping[str, Any] | str | int | torch.device | None = None,
    max_memory: MaxMemory | None = None,
    no_split_module_classes: Sequence[str] | str | None = None,
    offload_folder: str | Path | None = None,
    offload_buffers: bool = False,
    dtype: Dtype = None,
    offload_state_dict: bool | None = None,  # noqa: ARG001  (the family's signature; nothing is staged here)
    skip_keys: str | Sequence[str] | None = None,
    preload_module_classes: Sequence[str] | None = None,
    force_hooks: bool = False,
    strict: bool = False,
    full_state_dict: bool = True,
    broadcast_from_rank0: bool = False,
    *,
    copy: bool = False,
    resident_memory: int | str | None = None,
) -> nn.Module:
    """Load a checkpoint into a model, each tensor onto its device, and make the model run there.

    Args:
        model: usually built under `init_empty_weights`.
        checkpoint: see `load_checkpoint_in_model`.
        device_map: a map, one device, or "auto" (the same as "balanced"), "balanced_low_0", "sequential"; None: load only.
        max_memory: limits for a map that is made here, see `get_max_memory`.
        no_split_module_classes: classes whose modules stay whole in such a map.
        offload_folder: only needed for weights on disk that the checkpoint's files cannot serve as they are.
        dtype: of floating tensors; None: as in the checkpoint.
        offload_state_dict: accepted, not needed.
        offload_buffers: see `dispatch_model`.
        skip_keys: see `dispatch_model`.
        preload_module_classes: see `dispatch_model`.
        force_hooks: see `dispatch_model`.
        strict: see `load_checkpoint_in_model`.
        full_state_dict: see `load_checkpoint_in_model`.
        broadcast_from_rank0: see `load_checkpoint_in_model`.
        copy: see `load_checkpoint_in_model`.
        resident_memory: see `dispatch_model`.

    Returns the model. Raises CheckpointFileError or SettingError (both ValueErrors), before the model is touched.
    """
    resolved = resolve_device_map(model, device_map, max_memory, no_split_module_classes, dtype, offload_buffers)
    if not full_state_dict:
        raise UnsupportedError("full_state_dict=False is not available")
    opened = open_for(checkpoint, copy=copy, broadcast_from_rank0=broadcast_from_rank0)
    plan = prepare(model, opened, resolved, dtype, strict=strict)
    if resolved is not None:
        check_rest(model, plan, resolved, offload_folder)
    carry_out(model, plan, offload_folder)
    if resolved is None:
        return model
    return dispatch_model(
        model,
        resolved,
        offload_dir=offload_folder,
        offload_buffers=offload_buffers,
        skip_keys=skip_keys,
        preload_module_classes=preload_module_classes,
        force_hooks=force_hooks,
        resident_memory=resident_memory,
    )


def cpu_offload(
    model: nn.Module,
    execution_device: torch.device | str | int | None = None,
    offload_buffers: bool = False,
    state_dict: Mapping[str, torch.Tensor] | None = None,
    preload_module_classes: Sequence[str] | None = None,
) -> nn.Module:
    """Keep all weights in the CPU's memory and bring each module's to a device for its forward.

    `execution_device` is where the model is, unless given. The other arguments are those of `dispatch_model`.
    """
    return dispatch_model(
        model,
        {"": "cpu"},
        main_device=_where(model, execution_device),
        state_dict=state_dict,
        offload_buffers=offload_buffers,
        preload_module_classes=preload_module_classes,
    )


def disk_offload(
    model: nn.Module,
    offload_dir: str | Path,
    execution_device: torch.device | str | int | None = None,
    offload_buffers: bool = False,
    preload_module_classes: Sequence[str] | None = None,
    *,
    resident_memory: int | str | None = None,
) -> nn.Module:
    """Keep all weights in files, written to `offload_dir` unless they are views of files; those on meta must lie there already.

    `execution_device` is where the model is, unless given. The other arguments are those of `dispatch_model`.
    """
    return dispatch_model(
        model,
        {"": "disk"},
        main_device=_where(model, execution_device),
        offload_dir=offload_dir,
        offload_buffers=offload_buffers,
        preload_module_classes=preload_module_classes,
        resident_memory=resident_memory,
    )


def _where(model: nn.Module, execution_device: torch.device | str | int | None) -> torch.device:
    if execution_device is not None:
        return full_device(execution_device)
    devices = (parameter.device for parameter in model.parameters() if not parameter.is_meta)
    return next(devices, torch.device("cpu"))


def _main_device(device_map: Mapping[str, Any], given: torch.device | str | int | None) -> torch.device:
    if given is not None:
        return full_device(given)
    return next(
        (full_device(place) for place in device_map.values() if place not in ("cpu", "disk")), torch.device("cpu")
    )


def _values(
    state_dict: Mapping[str, torch.Tensor] | None, offload_dir: str | Path | None, index: OffloadIndex | None
) -> OffloadedWeightsLoader:
    found = load_offload_index(offload_dir) if index is None and offload_dir is not None else index or {}
    return OffloadedWeightsLoader(state_dict or {}, offload_dir, found)


def _refuse_empty(names: Sequence[str], misfits: Sequence[str] = ()) -> None:
    """Raise for tensors that have no value."""
    if names:
        raise SettingError(
            f"these tensors are on the meta device, without a value: {', '.join(names)}",
            hint="; ".join(misfits) or "load a checkpoint, or give state_dict or an offload folder that has them",
        )


def _refuse_lazy(model: nn.Module) -> None:
    """Raise for tensors that have no shape yet."""
    lazy = [slot.name for slot in all_slots(model) if nn.parameter.is_lazy(slot.tensor)]
    if lazy:
        raise SettingError(f"these tensors have no shape yet: {', '.join(lazy)}", hint=FIRST_FORWARD)


def _misfits(groups: Sequence[Sequence[Slot]], loader: OffloadedWeightsLoader) -> list[str]:
    """What there is for tensors without a value, in another shape than theirs."""
    return [
        f"what is given for {slot.name} has the shape {list(loader.shape_of(slot.name))} instead of {list(slot.tensor.shape)}"
        for slots in groups
        for slot in slots
        if slot.name in loader
    ]


def _place_all(
    model: nn.Module,
    device_map: Mapping[str, Any],
    main: torch.device,
    loader: OffloadedWeightsLoader,
    offload_dir: str | Path | None,
    offload_buffers: bool,
) -> None:
    """Put every tensor on its place. What must be written is written before anything moves."""
    chosen = list(_choices(model, device_map, main, offload_buffers))
    values = {slots[0].name: _value(slots, loader) for slots, _ in chosen}
    empty = [slots for slots, _ in chosen if values[slots[0].name].is_meta]
    _refuse_empty([slots[0].name for slots in empty], _misfits(empty, loader))
    disk = [slots[0] for slots, place in chosen if place == "disk"]
    to_keep = [slot for slot in disk if offload_dir is not None or not slot.is_buffer]  # other buffers stay in memory
    values.update(_written({slot.name: values[slot.name] for slot in to_keep}, offload_dir))
    for slots, place in chosen:
        value = values[slots[0].name]
        held = replace(slots[0], value.to("cpu" if place == "disk" else place))
        for slot in slots[1:]:
            slot.put(held)


def _written(values: Mapping[str, torch.Tensor], offload_dir: str | Path | None) -> dict[str, torch.Tensor]:
    """Those of the values that are not views of files, written and as views of what was written."""
    to_write = {name: value for name, value in values.items() if value.numel() and region_of(value) is None}
    if not to_write:
        return {}
    if offload_dir is None:
        raise SettingError(
            f"the device map puts {', '.join(to_write)} on disk: an offload_dir is needed to write them to",
            hint="give offload_dir; weights that are views of safetensors files already need none",
        )
    offload_state_dict(offload_dir, to_write)
    written = OffloadedWeightsLoader(save_folder=offload_dir)
    return {name: written[name] for name in to_write}


def _choices(
    model: nn.Module, device_map: Mapping[str, Any], main: torch.device, offload_buffers: bool
) -> Iterator[tuple[list[Slot], Any]]:
    """Each tensor once, with all its names, and its one place: an accelerator before the CPU before the disk."""
    groups: dict[int, list[Slot]] = {}
    for slot in all_slots(model):
        groups.setdefault(id(slot.tensor), []).append(slot)
    for slots in groups.values():
        places = [place_of(device_map, slot.name) for slot in slots]
        place = min(places, key=lambda place: (place == "disk") * 2 + (str(place) == "cpu"))
        if all(slot.is_buffer for slot in slots) and not offload_buffers and place in ("cpu", "disk"):
            place = main
        yield slots, place


def _value(slots: Sequence[Slot], loader: OffloadedWeightsLoader) -> torch.Tensor:
    """The tensor's own value; of one on meta what the state dict or the offload folder has under one of its names."""
    present = slots[0].tensor.detach()
    for slot in slots if present.is_meta else ():
        if slot.name in loader and tuple(loader.shape_of(slot.name)) == tuple(present.shape):
            return loader[slot.name].detach()
    return present


def _add_hooks(
    model: nn.Module,
    device_map: Mapping[str, Any],
    main: torch.device,
    before: Mapping[str, torch.device],
    skip_keys: str | Sequence[str] | None,
    preload: Sequence[str] | None,
    budget: int | None,
) -> None:
    places = list(holders(model, "", preload))
    runs_on = {name: _runs_on(place_of(device_map, name), main) for name, _, _ in places}
    feed: Any
    if main.type == "cpu" and len(set(runs_on.values())) == 1:
        members = _mapped_members(places, device_map)
        hooked = [entry for entry in places if entry[0] in members]
        feed = Readahead(members, budget)
    else:
        hooked = places
        feed = _transfer(places, runs_on)
    offloads = any(place in ("cpu", "disk") and place != main.type for place in device_map.values())
    outermost = WholeModelHook(main, skip_keys, offloads=offloads, feed=feed if hooked else None)
    add_hook_to_module(model, outermost, append=True)
    for name, module, whole in hooked:
        hook = PlacedHook(runs_on[name], skip_keys=skip_keys, place_submodules=whole, feed=feed, key=name)
        hook.original_devices = {slot.name: before[slot.name] for slot in hook.named_slots(module, name)}
        add_hook_to_module(module, hook, append=True)
    guard_moves(model)


def _mapped_members(places: Sequence[tuple[str, nn.Module, bool]], device_map: Mapping[str, Any]) -> dict[str, Member]:
    """The modules whose weights are views of files, if any part of the model is on disk."""
    if "disk" not in device_map.values():
        return {}
    return {
        name: Member(module, whole, stays=place_of(device_map, name) not in ("disk", None))
        for name, module, whole in places
        if any(region_of(slot.tensor) is not None for slot in _slots(module, whole))
    }


def _runs_on(place: Any, main: torch.device) -> torch.device:
    return main if place in (None, "cpu", "disk") else full_device(place)


def _slots(module: nn.Module, whole: bool) -> Iterator[Slot]:
    return all_slots(module) if whole else own_slots(module)


def _transfer(places: Sequence[tuple[str, nn.Module, bool]], runs_on: Mapping[str, torch.device]) -> Transfer:
    """What brings the tensors that are elsewhere than where their modules run."""
    away = {
        name: [slot.tensor.detach() for slot in _slots(module, whole) if slot.tensor.device != runs_on[name]]
        for name, module, whole in places
    }
    feed = Transfer({name: runs_on[name] for name, homes in away.items() if homes})
    for name, homes in away.items():
        feed.expect(name, homes)
    return feed
