"""A mapped model on the CPU is read in while it first runs."""

import copy
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from accelkit import dispatch_model, init_empty_weights, load_checkpoint_and_dispatch
from accelkit.hooks import remove_hook_from_module
from accelkit.runtime.bigmodel import warming
from tests.support.kit import until


def build(layers: int) -> nn.Sequential:
    """Layers of 4 MiB."""
    return nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(layers)])


def mapped(folder: Path, layers: int) -> nn.Module:
    """Of a file, on the CPU."""
    if not (folder / "model.safetensors").exists():
        save_file(build(layers).state_dict(), folder / "model.safetensors")
    with init_empty_weights():
        model = build(layers)
    return load_checkpoint_and_dispatch(model, folder, {"": "cpu"}, strict=True)


def resident(model: nn.Module) -> int:
    """Bytes of the weights whose pages are entered in this process."""
    count = 0
    with open("/proc/self/pagemap", "rb", buffering=0) as pages:
        for parameter in model.parameters():
            first, size = parameter.data_ptr() // 4096, parameter.numel() * parameter.element_size() // 4096
            count += sum(bool(os.pread(pages.fileno(), 8, (first + page) * 8)[7] & 128) for page in range(size))
    return count * 4096


def test_nothing_is_read_before_and_all_of_it_from_the_first_forward_on(tmp_path: Path) -> None:
    """Also what that forward has not come to; afterwards the model has no hook left, and so has a copy that ran."""
    model = mapped(tmp_path, 24)
    assert resident(model) < 1 << 20
    for one in (model, copy.deepcopy(mapped(tmp_path, 24))):
        for layer in list(one)[1:]:
            layer.forward = nn.Identity()
        with torch.no_grad():
            one(torch.ones(1, 1024))
        assert not one._forward_pre_hooks
        assert set(one.__dict__) - set(build(1).__dict__) == {"hf_device_map"}
    until(lambda: resident(model) >= 95 << 20, "all weights are in memory")


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_model_that_has_not_run_can_be_scripted(tmp_path: Path) -> None:
    """Alone, and as a part of another; what it prepares itself for that is done, too."""
    x = torch.ones(1, 1024)
    with torch.no_grad():
        for around in (lambda model: model, nn.Sequential):
            model = mapped(tmp_path, 1)
            scripted = torch.jit.script(around(model))
            assert torch.equal(scripted(x), model(x))
    model = Prepared(mapped(tmp_path, 1))
    warming.read_at_first_forward(model)
    torch.jit.script(model)
    assert model.prepared


class Prepared(nn.Sequential):
    """Notes that it is asked."""

    prepared = False

    def __prepare_scriptable__(self) -> nn.Module:
        self.prepared = True
        return self


def test_what_waits_for_the_first_forward_is_there_once_and_goes(tmp_path: Path) -> None:
    """However often the model is dispatched; taking hooks off leaves nothing."""
    model = mapped(tmp_path, 1)
    names = set(model.__dict__)
    for _ in range(3):
        dispatch_model(model, {"": "cpu"})
    assert len(model._forward_pre_hooks) == 1
    assert set(model.__dict__) == names
    remove_hook_from_module(model, recurse=True)
    assert not model._forward_pre_hooks
    assert set(model.__dict__) == set(build(1).__dict__)


def test_pieces_cover_the_weights_in_order_and_stop_at_the_limit(tmp_path: Path) -> None:
    """Every byte once, whatever the size of a piece; of what there is no room for, nothing."""
    model = mapped(tmp_path, 3)
    for size in (1 << 12, 5000, 3 << 20, 64 << 20):
        warming.PIECE, usual = size, warming.PIECE  # type: ignore[misc]
        try:
            pieces = list(warming._pieces(model))
        finally:
            warming.PIECE = usual  # type: ignore[misc]
        covered = {}
        for piece in pieces:
            assert piece.size <= size
            covered[piece.address] = piece.size
        for parameter in model.parameters():
            address, end = parameter.data_ptr(), parameter.data_ptr() + parameter.numel() * 4
            while address < end:
                address += covered.pop(address)
            assert address == end
        assert not covered
        for limit in (0, size, 2 * size + 1, 10**9):
            assert sum(piece.size for piece in warming._within(iter(pieces), limit)) <= limit


def test_a_model_in_memory_gets_no_hook() -> None:
    """There is nothing to read."""
    model = build(1)
    warming.read_at_first_forward(model)
    assert not model._forward_pre_hooks
