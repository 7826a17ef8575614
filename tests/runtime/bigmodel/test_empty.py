"""Models built without memory."""

import json
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from torch import nn

from accelkit import init_empty_weights, init_on_device
from accelkit.utils import find_tied_parameters
from tests.support.bigmodels import KINDS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("include_buffers", [False, True])
def test_all_parameters_and_asked_for_buffers_are_on_meta(kind: str, include_buffers: bool) -> None:
    """Parameters have no memory, buffers do unless asked; names, shapes, dtypes and ties are those of the real model."""
    real = KINDS[kind]()
    with init_empty_weights(include_buffers=include_buffers):
        empty = KINDS[kind]()

    assert {p.device.type for p in empty.parameters()} == {"meta"}
    assert {b.device.type for b in empty.buffers()} == {"meta" if include_buffers else "cpu"}
    assert find_tied_parameters(empty) == find_tied_parameters(real)
    described = [
        {
            name: (value.shape, value.dtype, value.requires_grad)
            for name, value in model.state_dict(keep_vars=True).items()
        }
        for model in (real, empty)
    ]
    assert described[0] == described[1]
    if not include_buffers:
        assert all(torch.equal(a, b) for a, b in zip(real.buffers(), empty.buffers(), strict=True))


def test_a_parameter_keeps_its_class_attributes_and_identity() -> None:
    """A parameter of another class, with attributes, frozen, under two names is still that."""

    class Special(nn.Parameter):
        pass

    module = nn.Module()
    with init_empty_weights():
        parameter = Special(torch.ones(3, dtype=torch.bfloat16), requires_grad=False)
        parameter.note = "kept"
        module.first = parameter
        module.second = parameter

    assert type(module.first) is Special
    assert module.first is module.second
    assert (module.first.note, module.first.requires_grad, module.first.dtype) == ("kept", False, torch.bfloat16)
    assert module.first.is_meta


def test_blocks_nest_and_errors_restore() -> None:
    """The innermost block counts; after any block, also one left by an error, modules are real again."""
    with init_empty_weights():
        with init_on_device("cpu"):
            inner = nn.Linear(2, 2)
        outer = nn.Linear(2, 2)
    with pytest.raises(KeyError), init_empty_weights(), init_empty_weights(include_buffers=True):
        raise KeyError
    after = nn.BatchNorm1d(2)

    assert not inner.weight.is_meta
    assert outer.weight.is_meta
    assert not after.weight.is_meta
    assert not after.running_mean.is_meta


def test_the_innermost_block_counts_also_where_an_outer_one_includes_buffers() -> None:
    """It decides for parameters and buffers alike, at any depth; the outer one goes on after it."""
    with init_empty_weights(include_buffers=True):
        with init_on_device("cpu"):
            real = nn.BatchNorm1d(2)
            with init_empty_weights(include_buffers=True):
                deepest = nn.BatchNorm1d(2)
            again = nn.BatchNorm1d(2)
        with init_empty_weights():
            parameters_alone = nn.BatchNorm1d(2)
        after = nn.BatchNorm1d(2)

    def is_meta(module: nn.BatchNorm1d) -> tuple[bool, bool]:
        assert module.running_mean is not None
        return module.weight.is_meta, module.running_mean.is_meta

    assert is_meta(real) == is_meta(again) == (False, False)
    assert torch.equal(real.weight, torch.ones(2))
    assert is_meta(parameters_alone) == (True, False)
    assert is_meta(deepest) == is_meta(after) == (True, True)


def test_buffers_may_be_none() -> None:
    """From the start, or set to None later."""
    with init_empty_weights(include_buffers=True):
        norm = nn.BatchNorm1d(3, track_running_stats=False)
        norm.register_buffer("scale", torch.ones(1))
        norm.scale = None

    assert norm.running_mean is None
    assert norm.scale is None
    assert norm.weight.is_meta


def test_sizes_may_be_numbers_of_any_kind() -> None:
    """Whatever torch.empty takes for a size outside the block."""
    with init_empty_weights():
        made = [torch.empty(np.int64(4)), torch.empty(torch.tensor(4)), torch.empty(4), torch.empty(size=(4,))]
        table = torch.empty((np.int64(2), torch.tensor(3)))

    assert [tuple(tensor.shape) for tensor in made] == [(4,)] * 4
    assert tuple(table.shape) == (2, 3)


def test_models_built_before_and_by_other_threads_are_left_alone() -> None:
    """A block concerns what its own thread registers inside it."""
    before = nn.Linear(2, 2)
    built: list[nn.Module] = []
    with init_empty_weights():
        thread = threading.Thread(target=lambda: built.append(nn.Linear(2, 2)))
        thread.start()
        thread.join()
        nn.init.ones_(before.weight)
        holder = nn.Sequential(before)

    assert not built[0].weight.is_meta
    assert holder[0] is before
    assert torch.equal(before.weight, torch.ones(2, 2))


def test_writing_to_real_tensors_goes_on_inside() -> None:
    """Only what has no memory is not written to: buffers get their values."""
    with init_empty_weights():
        module = nn.Module()
        module.register_buffer("table", torch.empty(4).fill_(3).mul_(2))
        module.register_buffer("drawn", torch.zeros(100).normal_())

    assert torch.equal(module.table, torch.full((4,), 6.0))
    assert module.drawn.std() > 0.5


def test_lazy_modules_stay_lazy() -> None:
    """A parameter whose shape is not known yet takes its shape later, on the device of the block."""
    with init_empty_weights():
        module = nn.LazyLinear(3)

    assert isinstance(module.weight, nn.UninitializedParameter)
    assert module.weight.device.type == "meta"


COUNTERS = """
import json, resource, sys
import torch
from torch import nn
from accelkit import init_empty_weights
modules = set(sys.modules)
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with init_empty_weights():
    model = nn.Sequential(*[nn.Linear(10**6, 10**6) for _ in range(4)], nn.TransformerEncoderLayer(64, 4), nn.LSTM(8, 8))
    for fill in (nn.init.trunc_normal_, nn.init.xavier_normal_, nn.init.orthogonal_, nn.init.kaiming_uniform_, nn.init.sparse_):
        fill(model[0].weight, 0.5) if fill is nn.init.sparse_ else fill(model[0].weight)
    model[1].weight.data.normal_().clamp_(0, 1)
with init_empty_weights(include_buffers=True):
    nn.BatchNorm1d(4)
print(json.dumps({
    "parameters": sum(p.numel() for p in model.parameters()),
    "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory,
    "imported": [name for name in ("sympy", "torch._dynamo") if name in set(sys.modules) - modules],
}))
"""


@pytest.mark.slow
def test_trillions_of_parameters_cost_no_memory_and_no_imports() -> None:
    """4 x 10^12 parameters: under 30 MiB in all, and neither sympy nor torch._dynamo is imported."""
    done = subprocess.run([sys.executable, "-c", COUNTERS], capture_output=True, check=True, text=True)
    found = json.loads(done.stdout)

    assert found["parameters"] > 4 * 10**12
    assert found["memory"] < 30 * 1024
    assert found["imported"] == []
