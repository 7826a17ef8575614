"""Loading a checkpoint into a model: everything is planned and checked first, then done a tensor at a time.

One rule for types on every path: a tensor keeps the checkpoint's dtype unless `dtype` is given, which concerns floating
tensors alone. A tensor for the CPU or the disk whose dtype stays is a view of the checkpoint's file: nothing is read, copied
or written. What must be on disk in another dtype, or comes from a form that cannot be mapped, is written to `offload_folder`.
"""

import logging
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from accelkit.runtime import sharded
from accelkit.runtime.bigmodel.broadcast import read_on_rank_0
from accelkit.runtime.bigmodel.bytesize import CustomDtype
from accelkit.runtime.bigmodel.checkpoint import Checkpoint, Stored, open_checkpoint
from accelkit.runtime.bigmodel.collecting import uncollected
from accelkit.runtime.bigmodel.device_map import check_device_map, check_places, place_of
from accelkit.runtime.bigmodel.failures import CheckpointFileError
from accelkit.runtime.bigmodel.mapping import region_of
from accelkit.runtime.bigmodel.naming import fit_names
from accelkit.runtime.bigmodel.offload_files import (
    load_offload_index,
    load_offloaded_weight,
    offload_state_dict,
)
from accelkit.runtime.bigmodel.own_ways import convert
from accelkit.runtime.bigmodel.sizes import Dtype, as_dtype
from accelkit.runtime.bigmodel.tensors import Slot, all_slots, replace
from accelkit.runtime.errors import SettingError, UnsupportedError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Item:
    """One tensor of the model and where its value comes from and goes to."""

    slots: tuple[Slot, ...]
    """All names of it: they hold one object afterwards."""
    source: Stored
    place: Any
    """Device, or "disk"."""
    dtype: torch.dtype

    @property
    def name(self) -> str:
        """The first of its names."""
        return self.slots[0].name

    @property
    def must_be_written(self) -> bool:
        """Whether the checkpoint's own file cannot serve as its place on disk."""
        is_served = not self.source.size or (self.source.is_mapped and self.source.dtype == self.dtype)
        return self.place == "disk" and not is_served

    @property
    def is_buffer(self) -> bool:
        """Whether it is a buffer, which stays in memory where there is no folder to write it to."""
        return self.slots[0].is_buffer

    def value(self) -> torch.Tensor:
        """What the checkpoint has, in its dtype and on its place; for the disk where the checkpoint has it."""
        found = self.source.read().to(self.dtype)
        return found if self.place == "disk" else found.to(self.place)


@dataclass
class Plan:
    """What loading is going to do."""

    path: Path
    """The checkpoint."""
    items: list[Item] = field(default_factory=list)
    missing: list[Slot] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    missing_state: list[str] = field(default_factory=list)
    """Extra state, which is no tensor of the model."""
    afterwards: list[Callable[[], None]] = field(default_factory=list)
    """What is to be done when all tensors are in their places."""


@uncollected()
def load_checkpoint_in_model(
    model: nn.Module,
    checkpoint: str | Path,
    device_map: Mapping[str, Any] | None = None,
    offload_folder: str | Path | None = None,
    dtype: Dtype = None,
    offload_state_dict: bool = False,  # noqa: ARG001  (the family's signature; nothing is staged here)
    offload_buffers: bool = False,  # noqa: ARG001  (the family's signature; where buffers run is decided at dispatch)
    keep_in_fp32_modules: Sequence[str] | None = None,
    offload_8bit_bnb: bool = False,
    strict: bool = False,
    full_state_dict: bool = True,
    broadcast_from_rank0: bool = False,
    *,
    copy: bool = False,
) -> None:
    """Load a checkpoint into a model that is on meta or real, each tensor onto its device. Installs no hooks.

    Of a model that is sharded already (prepared under fsdp) each rank reads its own parts; types stay as the model has them.

    Args:
        model: its tied tensors stay tied, and need one of their names in the checkpoint.
        checkpoint: a .safetensors or .bin file, an .index.json, or a folder that holds one; also a folder that
            torch.distributed.checkpoint wrote.
        device_map: name -> device, "cpu" or "disk"; None: the CPU for what is on meta, for the rest where it is.
        offload_folder: where tensors for the disk are written that the checkpoint's files cannot serve.
        dtype: of floating tensors; None: as in the checkpoint.
        offload_state_dict: accepted, not needed.
        offload_buffers: accepted, not needed.
        keep_in_fp32_modules: names of modules whose floating tensors become float32 when `dtype` is a half type.
        offload_8bit_bnb: not available.
        strict: missing and unexpected names raise; otherwise each kind is one warning that lists all.
        full_state_dict: accepted; must be true.
        broadcast_from_rank0: rank 0 alone reads the files; the others get the values from it.
        copy: read into memory of its own, for files that may change or be cut short while the model lives.

    Raises CheckpointFileError (a ValueError) for a damaged checkpoint or wrong shapes, before the model is touched; SettingError
    (a ValueError) for a device map with gaps or a missing `offload_folder`.
    """
    if offload_8bit_bnb or not full_state_dict:
        raise UnsupportedError("offload_8bit_bnb=True and full_state_dict=False are not available")
    opened = open_for(checkpoint, copy=copy, broadcast_from_rank0=broadcast_from_rank0)
    plan = prepare(model, opened, device_map, dtype, keep_in_fp32_modules or (), strict=strict)
    carry_out(model, plan, offload_folder)


def open_for(checkpoint: str | Path, *, copy: bool, broadcast_from_rank0: bool) -> Checkpoint:
    """The checkpoint as this rank reads it."""
    return read_on_rank_0(checkpoint, copy) if broadcast_from_rank0 else open_checkpoint(checkpoint, copy=copy)


def prepare(
    model: nn.Module,
    opened: Checkpoint,
    device_map: Mapping[str, Any] | None,
    dtype: Dtype,
    keep: Collection[str] = (),
    *,
    strict: bool,
) -> Plan:
    """Check everything and say what is lacking; the model is not touched."""
    if device_map is not None:
        check_device_map(model, device_map)
        check_places(device_map)
    plan = make_plan(model, opened, device_map, dtype, keep)
    _judge(plan, strict)
    return plan


def check_rest(model: nn.Module, plan: Plan, device_map: Mapping[str, Any], offload_folder: str | Path | None) -> None:
    """Raise SettingError for tensors that the checkpoint lacks and that could not be dispatched: without a value, or a folder."""
    given = {id(item.slots[0].tensor) for item in plan.items}
    rest = [group for group in _groups(model) if id(group[0].tensor) not in given]
    empty = [group[0].name for group in rest if group[0].tensor.is_meta]
    if empty:
        raise SettingError(
            f"these tensors are on the meta device, without a value: {', '.join(empty)}",
            hint=f"{plan.path} has no value for them, under any name they are tied to",
        )
    homeless = [
        group[0].name
        for group in rest
        if offload_folder is None and _place(group, device_map) == "disk" and _is_to_be_written(group[0])
    ]
    if homeless:
        raise SettingError(
            f"the device map puts {', '.join(homeless)} on disk, for which {plan.path} has no value: "
            "an offload_folder is needed to write what they are to",
            hint="give offload_folder, or map them to a device",
        )


def _is_to_be_written(slot: Slot) -> bool:
    value = slot.tensor.detach()
    return not slot.is_buffer and bool(value.numel()) and region_of(value) is None


def make_plan(
    model: nn.Module, checkpoint: Checkpoint, device_map: Mapping[str, Any] | None, dtype: Dtype, keep: Collection[str]
) -> Plan:
    """Match a model with a checkpoint. Raises CheckpointFileError that lists every tensor of another shape."""
    wanted = as_dtype(dtype)
    if isinstance(wanted, CustomDtype) or (wanted is not None and not wanted.is_floating_point):
        raise SettingError(
            f"dtype={dtype!r}: floating tensors cannot be loaded as that", hint="give a floating torch.dtype"
        )
    groups = list(_groups(model))
    names = {slot.name for group in groups for slot in group}
    fitting = fit_names(
        model, {slot.name for group in groups for slot in group if slot.is_persistent}, checkpoint.tensors
    )
    converted = convert(model, fitting, checkpoint.path, tensors=not sharded.has_sharded(model))
    stored = converted.tensors
    plan = Plan(checkpoint.path, unexpected=[name for name in stored if name not in names])
    plan.missing_state, plan.afterwards = converted.missing, converted.afterwards
    misfits = []
    for group in groups:
        source = next((stored[slot.name] for slot in group if slot.name in stored), None)
        if source is None:
            plan.missing.extend([slot for slot in group if slot.is_persistent][:1])
        elif source.shape != tuple(group[0].tensor.shape) and converted.own_shapes.isdisjoint(
            slot.name for slot in group
        ):
            misfits.append(
                f"{group[0].name}: {list(source.shape)} in the checkpoint, {list(group[0].tensor.shape)} here"
            )
        else:
            plan.items.append(
                Item(tuple(group), source, _place(group, device_map), _dtype_of(group, source, wanted, keep))
            )
    if misfits:
        raise CheckpointFileError(f"{checkpoint.path} holds tensors of other shapes:\n  " + "\n  ".join(misfits))
    return plan


def _groups(model: nn.Module) -> Iterator[list[Slot]]:
    """Every tensor once, with all its names."""
    groups: dict[int, list[Slot]] = {}
    for slot in all_slots(model):
        groups.setdefault(id(slot.tensor), []).append(slot)
    yield from groups.values()


def _place(group: Sequence[Slot], device_map: Mapping[str, Any] | None) -> Any:
    """The one place of a tensor: of those its names are mapped to an accelerator, else the CPU, else the disk."""
    if device_map is None:
        device = group[0].tensor.device
        return torch.device("cpu") if device.type == "meta" else device
    places = [place_of(device_map, slot.name) for slot in group]
    return min(places, key=lambda place: (place == "disk") * 2 + (str(place) == "cpu"))


def _dtype_of(group: Sequence[Slot], source: Stored, wanted: torch.dtype | None, keep: Collection[str]) -> torch.dtype:
    if wanted is None or not source.dtype.is_floating_point:
        return source.dtype
    kept = wanted.itemsize == 2 and any(part in keep for slot in group for part in slot.name.split("."))
    return torch.float32 if kept else wanted


def _judge(plan: Plan, strict: bool) -> None:
    """Say which names have no counterpart: an error when strict, else a warning."""
    problems = []
    if plan.missing or plan.missing_state:
        empty = [slot.name for slot in plan.missing if slot.tensor.is_meta]
        kept = [slot.name for slot in plan.missing if not slot.tensor.is_meta] + plan.missing_state
        if empty:
            problems.append(f"{plan.path} has no value for {', '.join(empty)}: still on the meta device")
        if kept:
            problems.append(f"{plan.path} has no value for {', '.join(kept)}: left as before")
    if plan.unexpected:
        problems.append(f"{plan.path} holds names that the model does not have: {', '.join(plan.unexpected)}")
    if problems and strict:
        raise CheckpointFileError("\n  ".join(problems), hint="strict=False loads what fits")
    for problem in problems:
        warnings.warn(problem, stacklevel=5)


def fill_parts(model: nn.Module, plan: Plan) -> None:
    """Fill the parts that this rank has of a sharded model, out of the checkpoint's files: no whole tensor is in memory.

    Types stay as they were when the model was sharded. Raises CheckpointFileError, before anything is changed, for what is on the meta
    device and not in the checkpoint.
    """
    given = {slot.name for item in plan.items for slot in item.slots}
    empty = [slot.name for slot in all_slots(model) if slot.tensor.is_meta and slot.name not in given]
    if empty:
        raise CheckpointFileError(
            f"a sharded model cannot stay on the meta device in part, and there is no value for {', '.join(empty)}",
            hint="init_empty_weights() keeps buffers real",
        )
    if any(slot.tensor.is_meta for slot in all_slots(model)):
        sharded.make_real(model, sharded.homes.get(model, torch.device("cpu")))
    tensors = {slot.name: slot.tensor for slot in all_slots(model)}
    for item in plan.items:
        sharded.fill(tensors[item.name], item.source.read())


def carry_out(model: nn.Module, plan: Plan, offload_folder: str | Path | None) -> None:
    """Do what was planned. What must be written is written, and what may be damaged is read, before the model is touched."""
    if sharded.has_sharded(model):
        fill_parts(model, plan)
    else:
        _fill(plan, offload_folder)
    for do in plan.afterwards:
        do()


def _fill(plan: Plan, offload_folder: str | Path | None) -> None:
    ready = _made_ready(plan, offload_folder)
    for item in plan.items:
        held = replace(item.slots[0], ready[item.name] if item.name in ready else item.value())
        for slot in item.slots[1:]:
            slot.put(held)
    changed = sorted({f"{item.source.dtype} -> {item.dtype}" for item in plan.items if item.source.dtype != item.dtype})
    if changed:
        logger.info("loaded in another dtype: %s", ", ".join(changed).replace("torch.", ""))


def _made_ready(plan: Plan, offload_folder: str | Path | None) -> dict[str, torch.Tensor]:
    """The values that must be written, as views of what was written, and those that were read to see that they can be."""
    to_write = [item for item in plan.items if item.must_be_written and not (item.is_buffer and offload_folder is None)]
    ready = _write(to_write, offload_folder) if to_write else {}
    for item in plan.items:
        if item.name not in ready and not item.source.is_sound:
            value = item.value()
            if item.slots[0].tensor.is_meta:  # else both would be in memory: it is read again
                ready[item.name] = value
    return ready


def _write(items: Sequence[Item], offload_folder: str | Path | None) -> dict[str, torch.Tensor]:
    """Write tensors to an offload folder, one at a time; returns them as views of their files."""
    if offload_folder is None:
        first = items[0]
        is_cast = first.source.dtype != first.dtype
        reason = f"{first.source.dtype}, wanted {first.dtype}" if is_cast else "it would have to be copied"
        raise SettingError(
            f"the device map puts {first.name} on disk, where {first.source.file} cannot serve it as it is "
            f"({reason}): an offload_folder is needed",
            hint="give offload_folder, or load a checkpoint that the safetensors library wrote, without dtype or copy",
        )
    offload_state_dict(offload_folder, _Converted(items))
    index = load_offload_index(offload_folder)
    return {
        item.name: load_offloaded_weight(Path(offload_folder) / f"{item.name}.dat", index[item.name]) for item in items
    }


class _Converted(Mapping[str, torch.Tensor]):
    """What is to be written, made one at a time."""

    def __init__(self, items: Sequence[Item]) -> None:
        self._items = {item.name: item for item in items}

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._items[name].value()

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


def load_state_dict(
    checkpoint_file: str | Path, device_map: Mapping[str, Any] | None = None, *, copy: bool = False
) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint file by name, each on its device; those for the CPU (and the disk) are views of the file."""
    result = {}
    for name, stored in open_checkpoint(checkpoint_file, copy=copy).tensors.items():
        place = None if device_map is None else place_of(device_map, name)
        result[name] = stored.read() if place in (None, "disk", "cpu") else stored.read().to(place)
    return result


def load_offloaded_weights(model: nn.Module, index: Mapping[str, Any], offload_folder: str | Path) -> None:
    """Put the tensors of an offload folder into a model, as views of their files."""
    slots = {slot.name: slot for slot in all_slots(model)}
    for name, entry in index.items():
        replace(slots[name], load_offloaded_weight(Path(offload_folder) / f"{name}.dat", entry))
