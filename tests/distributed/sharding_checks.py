"""What must hold of sharded models beside the suite for all strategies. Run once per rank; see `world_checks.py`.

python -m tests.distributed.sharding_checks FOLDER
"""

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from accelkit import (
    Accelerator,
    CheckpointFileError,
    DataLoaderConfiguration,
    FullyShardedDataParallelPlugin,
    ParallelismConfig,
    SettingError,
    TorchTensorParallelConfig,
    UnsupportedError,
    init_empty_weights,
    load_checkpoint_in_model,
)
from accelkit.runtime import sharded
from tests.distributed.collective_checks import expect
from tests.support.checks import run_checks
from tests.support.strategies import CASES, PLAN, Net, build, compare, optimizer_of, reference, train

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()
SHARDED = [name for name, case in CASES.items() if case.make(4).keys() & {"fsdp_plugin", "parallelism_config"}]


class Stream(IterableDataset[Any]):
    """Numbers as a stream."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[float]:
        return iter([float(number) for number in range(self.length)])


def cases(acc: Accelerator) -> list[Any]:
    """The sharded strategies that this world has room for."""
    return [CASES[name] for name in SHARDED if acc.num_processes in CASES[name].sizes]


def check_meta_model_from_a_checkpoint(acc: Accelerator) -> None:
    """A model that no rank has values of gets them from a checkpoint of one file or several, and trains as if it always had them."""
    size = acc.num_processes
    wanted, losses, _ = reference(3)
    for case in cases(acc):
        plain = case.accelerator(size)
        for limit in ("10GB", "300"):
            plain.save_model(plain.prepare(build()), FOLDER / f"whole-{limit}", max_shard_size=limit)
            plain.free_memory()
            acc = case.accelerator(size)
            with init_empty_weights():
                model = Net().double()
            model.factor = torch.tensor(0.5, dtype=torch.float64)
            optimizer = optimizer_of(model)
            model, optimizer = acc.prepare(model, optimizer)
            assert all(parameter.is_meta for parameter in model.parameters())
            load_checkpoint_in_model(model, FOLDER / f"whole-{limit}", strict=True)
            assert model.leave.weight is model.enter.weight
            found, _ = train(acc, model, optimizer, range(3))
            torch.testing.assert_close(torch.tensor(found), torch.tensor(losses), rtol=1e-9, atol=1e-11)
            compare(acc, model, wanted)


def check_a_checkpoint_with_gaps(acc: Accelerator) -> None:
    """A sharded model on the meta device is not left with values in part: what is missing is named, and nothing is changed."""
    from safetensors.torch import save_file

    state = build().state_dict()
    file = FOLDER / "gap.safetensors"
    if acc.is_main_process:
        save_file(
            {name: value.clone() for name, value in state.items() if name not in ("blocks.0.up.bias", "leave.weight")},
            file,
        )
    acc.wait_for_everyone()
    acc = CASES["fsdp"].accelerator(acc.num_processes)
    with init_empty_weights():
        model = acc.prepare(Net().double())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        error = expect(CheckpointFileError, lambda: load_checkpoint_in_model(model, file))
    assert "blocks.0.up.bias" in str(error)
    assert all(parameter.is_meta for parameter in model.parameters())


def check_rank_0_has_the_model(acc: Accelerator) -> None:
    """A model that only rank 0 has is filled from there, buffers that are not saved included; another rank alone cannot be the one."""
    size = acc.num_processes
    wanted, losses, _ = reference(3)
    for case in cases(acc):
        acc = case.accelerator(size)
        if acc.is_main_process:
            model = build()
        else:
            with torch.device("meta"):
                model = Net().double()
        model, optimizer = acc.prepare(model, optimizer_of(model))
        assert model.leave.weight is model.enter.weight
        assert float(model.factor) == 0.5
        found, _ = train(acc, model, optimizer, range(3))
        torch.testing.assert_close(torch.tensor(found), torch.tensor(losses), rtol=1e-9, atol=1e-11)
        compare(acc, model, wanted)
    with torch.device("meta" if acc.is_main_process else "cpu"):
        wrong = Net()
    expect(SettingError, lambda: acc.prepare(wrong))


def check_every_model_is_initialised_where_it_lies(acc: Accelerator) -> None:
    """`param_init_fn` gives values to a model that no rank has, part by part."""
    plugin = FullyShardedDataParallelPlugin(
        param_init_fn=lambda module: [nn.init.ones_(p) for p in module.parameters(recurse=False)]
    )
    acc = CASES["fsdp"].accelerator(acc.num_processes, fsdp_plugin=plugin)
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    state = acc.get_state_dict(acc.prepare(model))
    assert all(bool((value == 1).all()) for value in state.values())


def check_parts(acc: Accelerator) -> None:
    """Whatever the shape and the layout, the parts that arithmetic finds are those that the ranks hold, and they make the whole."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = CASES["fsdp"].accelerator(acc.num_processes).torch_device_mesh
    for shape in ((1,), (5,), (8, 3), (3, 8), (2, 3, 5), (0, 4)):
        whole = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
        for placement in (Replicate(), *(Shard(dim) for dim in range(len(shape)))):
            tensor = distribute_tensor(whole, mesh, [placement])
            assert torch.equal(sharded.box(tensor).cut(whole), tensor.to_local()), (shape, placement)
            assert torch.equal(sharded.gathered(sharded.as_layout(whole, tensor), keep=True), whole)
            target = sharded.empty_as(tensor, torch.float64)
            sharded.fill(target, whole)
            assert torch.equal(target.full_tensor(), whole.double())


def check_memory_is_divided(acc: Accelerator) -> None:
    """A rank holds its part of parameters, gradients and moments, rounded up, and not the whole of any."""
    size = acc.num_processes
    acc = CASES["fsdp"].accelerator(size)
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    whole = sum(parameter.numel() for parameter in model.parameters())
    model, optimizer = acc.prepare(model, torch.optim.AdamW(model.parameters()))
    acc.backward(model(torch.ones(2, 64)).sum())
    optimizer.step()
    for tensors in (
        list(model.parameters()),
        [parameter.grad for parameter in model.parameters()],
        [state["exp_avg"] for state in optimizer.state.values()],
    ):
        assert sum(sharded.local(tensor).numel() for tensor in tensors) == whole // size


def check_ignored_modules(acc: Accelerator) -> None:
    """Parameters of ignored modules stay whole on every rank; those that are trained are said to be each rank's own."""
    for ignored in ("0", None):
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        model[0].requires_grad_(False)
        plugin = FullyShardedDataParallelPlugin(ignored_modules=ignored or [model[0]])
        prepared = CASES["fsdp"].accelerator(acc.num_processes, fsdp_plugin=plugin).prepare(model)
        assert [sharded.is_sharded(layer.weight) for layer in prepared] == [False, True]
    plugin = FullyShardedDataParallelPlugin(ignored_modules="0")
    trained = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        CASES["fsdp"].accelerator(acc.num_processes, fsdp_plugin=plugin).prepare(trained)
    assert any("each rank's own" in str(warning.message) for warning in caught)


def check_what_cannot_be_is_refused(acc: Accelerator) -> None:
    """Layouts that do not fit name those that do; sequences in parts, joins and plans that match nothing are refused."""
    size = acc.num_processes

    def make(**settings: Any) -> Accelerator:
        return CASES["fsdp"].accelerator(size, fsdp_plugin=None, **settings)

    error = expect(SettingError, lambda: make(parallelism_config=ParallelismConfig(tp_size=size + 1)))
    assert f"this run has {size}" in str(error)
    assert "dp_shard_size" in str(error)
    expect(UnsupportedError, lambda: make(parallelism_config=ParallelismConfig(cp_size=size)))
    expect(SettingError, lambda: make(strategy="ddp", parallelism_config=ParallelismConfig(dp_shard_size=size)))
    for plan in ({"nothing.*": "colwise"}, {"blocks.*.up": "sideways"}, None, {"enter": "colwise"}):
        if plan == {"enter": "colwise"} and 6 % size == 0:
            continue
        layout = ParallelismConfig(tp_size=size, tp_handler=TorchTensorParallelConfig(plan=plan))
        parallel = make(parallelism_config=layout)
        expect(SettingError, lambda acc=parallel: acc.prepare(build()))
    acc = CASES["fsdp"].accelerator(size)
    model = acc.prepare(build())

    def join() -> None:
        with acc.join_uneven_inputs([model]):
            pass

    expect(UnsupportedError, join)


def check_a_plan_of_the_model(acc: Accelerator) -> None:
    """A model that brings its own plan is divided by it."""
    if acc.num_processes != 2:
        return
    acc = CASES["fsdp"].accelerator(2, fsdp_plugin=None, parallelism_config=ParallelismConfig(tp_size=2))
    model = build()
    model.tp_plan = PLAN
    wanted, losses, _ = reference(3)
    model, optimizer = acc.prepare(model, optimizer_of(model))
    assert sharded.local(model.blocks[0].up.weight).shape == (4, 6)
    found, _ = train(acc, model, optimizer, range(3))
    torch.testing.assert_close(torch.tensor(found), torch.tensor(losses), rtol=1e-9, atol=1e-11)
    compare(acc, model, wanted)


def check_streams_of_ranks_that_share_a_batch(acc: Accelerator) -> None:
    """Each rank reads a stream itself, and takes the batch of its share; rank 0 cannot hand out what several ranks share."""
    layout = ParallelismConfig(tp_size=2, dp_shard_size=acc.num_processes // 2)
    acc = CASES["fsdp"].accelerator(acc.num_processes, fsdp_plugin=None, parallelism_config=layout)
    loader = acc.prepare(DataLoader(Stream(11), batch_size=2))
    assert [value for batch in loader for value in acc.gather_for_metrics(batch).tolist()] == [*range(11)]
    acc.dataloader_config = DataLoaderConfiguration(dispatch_batches=True)
    expect(SettingError, lambda: acc.prepare(DataLoader(Stream(11), batch_size=2)))


def check_copies_alone_are_ddp(acc: Accelerator) -> None:
    """A layout of copies alone, or of nothing, is ddp."""
    for layout in (ParallelismConfig(dp_replicate_size=acc.num_processes), ParallelismConfig()):
        assert CASES["ddp"].accelerator(acc.num_processes, strategy="auto", parallelism_config=layout).strategy == "ddp"


if __name__ == "__main__":
    run_checks(globals(), sys.argv[1])
