"""Tied parameters: one tensor under several names."""

import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from accelkit.runtime.bigmodel.tensors import Slot, all_slots, find_slot


def tied_slots(model: nn.Module) -> list[list[Slot]]:
    """Parameters and buffers that are one object under several names, in module order."""
    groups: dict[int, list[Slot]] = defaultdict(list)
    for slot in all_slots(model):
        groups[id(slot.tensor)].append(slot)
    return [group for group in groups.values() if len(group) > 1]


def find_tied_parameters(model: nn.Module, **_: Any) -> list[list[str]]:
    """Groups of names under which one parameter is registered, each group sorted."""
    return [sorted(slot.name for slot in group) for group in tied_slots(model) if not group[0].is_buffer]


def retie_parameters(model: nn.Module, tied_params: Sequence[Sequence[str]]) -> None:
    """Make the names of each group hold one parameter again: the first of them that has a value (is not on meta)."""
    for names in tied_params:
        slots = [find_slot(model, name) for name in names]
        held = next((slot.tensor for slot in slots if not slot.tensor.is_meta), slots[0].tensor)
        for slot in slots:
            if slot.tensor is not held:
                slot.put(held)


def check_tied_parameters_in_config(model: nn.Module) -> bool:
    """Whether a model's config says that embeddings are tied (of its head, or of encoder and decoder)."""
    config = getattr(model, "config", None)
    text = getattr(config, "get_text_config", lambda **_: config)(decoder=True)
    has_head = getattr(model, "get_output_embeddings", lambda: None)() is not None
    return (bool(getattr(text, "tie_word_embeddings", False)) and has_head) or bool(
        getattr(config, "tie_encoder_decoder", False) and getattr(config, "is_encoder_decoder", False)
    )


def check_tied_parameters_on_same_device(tied_params: Sequence[Sequence[str]], device_map: Mapping[str, Any]) -> None:
    """Warn of each group whose names a device map puts on different devices."""
    for names in tied_params:
        places = {name: _place(device_map, name) for name in names}
        if len(set(places.values())) > 1:
            shown = ", ".join(f"{name} on {place}" for name, place in places.items())
            warnings.warn(f"tied parameters are on different devices: {shown}", stacklevel=2)


def _place(device_map: Mapping[str, Any], name: str) -> Any:
    prefix = name
    while prefix and prefix not in device_map:
        prefix = prefix.rpartition(".")[0]
    return device_map.get(prefix)


def id_tensor_storage(tensor: torch.Tensor) -> tuple[torch.device, int, int]:
    """What identifies a tensor's memory: device, address, bytes. Tensors on meta are told apart by the object."""
    storage = tensor.untyped_storage()
    address = id(tensor) if tensor.is_meta else storage.data_ptr()
    return tensor.device, address, storage.nbytes()
