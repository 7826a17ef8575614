"""What must hold of every strategy, in one world. Run once per rank; outcomes by case and check go to a file that the test reads.

python -m tests.distributed.strategy_checks FOLDER [deepspeed]
"""

import json
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader

from accelkit import GradScalerKwargs, PartialState
from tests.support.strategies import (
    CASES,
    DEEPSPEED_CASES,
    EXACT,
    Case,
    batch_of,
    build,
    compare,
    float32_bound,
    optimizer_of,
    reference,
    train,
)


def check_training(case: Case, size: int, folder: Path) -> None:
    """Losses, norms and weights are those of one process, accumulating or not, whichever of model and optimizer is prepared first."""
    wanted, losses, norms = reference(5, clip=0.7)
    for accumulate, order in ((1, "model"), (2, "optimizer"), (1, "apart")):
        acc = case.accelerator(size)
        model = build(seed=3 if acc.is_main_process else 99)  # rank 0's values count
        optimizer = optimizer_of(model)
        if order == "apart":
            optimizer = acc.prepare(optimizer)
            model = acc.prepare(model)
        elif order == "model":
            model, optimizer = acc.prepare(model, optimizer)
        else:
            optimizer, model = acc.prepare(optimizer, model)
        found = train(acc, model, optimizer, range(5), clip=0.7, accumulate=accumulate)
        torch.testing.assert_close(torch.tensor(found), torch.tensor([losses, norms]), **case.near)
        compare(acc, model, wanted, case.near)


def check_ownership(case: Case, size: int, folder: Path) -> None:
    """The strategy is the one that was asked for, says what it owns, and the parts of it that scripts look at agree."""
    acc = case.accelerator(size)
    strategy = acc._strategy
    assert acc.strategy == strategy.name == (case.expected or case.name.split("-")[0])
    assert acc.is_fsdp2 == acc.is_composable_parallelism_enabled == strategy.capabilities.shards
    assert (acc.parallelism_config is None) == (acc.torch_device_mesh is None)
    assert size % strategy.data_size == 0
    if acc.torch_device_mesh is not None:
        mesh = acc.torch_device_mesh
        where = dict(zip(mesh.mesh_dim_names, mesh.get_coordinate(), strict=True))
        assert acc.tensor_parallel_rank == where.get("tp", 0)
        assert acc.data_parallel_rank == where.get("dp_replicate", 0)
        assert acc.data_parallel_shard_rank == where["dp_shard"]
    assert strategy.data_rank == strategy.share_of(acc.process_index)
    scaled = case.accelerator(size, mixed_precision="fp16")
    assert scaled.torch_device_mesh is acc.torch_device_mesh, "an Accelerator made again has the groups that are there"
    assert (scaled.scaler is None) == strategy.capabilities.owns_loss_scaling


def check_unwrapping(case: Case, size: int, folder: Path) -> None:
    """Unwrapping gives the object that was prepared, preparing twice changes nothing, names and frozen weights stay."""
    acc = case.accelerator(size)
    model = build()
    names = [name for name, _ in model.named_parameters()]
    wrapped = acc.prepare(model)
    assert acc.prepare(model) is acc.prepare(wrapped) is wrapped
    assert acc.unwrap_model(wrapped) is model
    assert [name for name, _ in model.named_parameters()] == names
    assert model.leave.weight is model.enter.weight
    assert not model.gain.requires_grad
    compare(acc, wrapped, build())


def check_norms_and_values(case: Case, size: int, folder: Path) -> None:
    """Norms of every kind are those of the whole gradients; clipping by value limits each element."""
    plain = build()
    x, y = batch_of(0)
    nn.functional.mse_loss(plain(x), y).backward()
    acc = case.accelerator(size)
    model = build()
    model, _ = acc.prepare(model, torch.optim.SGD(model.parameters()))
    x, y, shares = x.to(acc.device), y.to(acc.device), acc._strategy.data_size
    for kind in (1.0, 2.0, 3.0, float("inf")):
        acc.backward(
            nn.functional.mse_loss(model(x[acc._strategy.data_rank :: shares]), y[acc._strategy.data_rank :: shares])
        )
        before = acc.clip_grad_norm_(model.parameters(), 1e9, kind)
        wanted = nn.utils.get_total_norm([p.grad for p in plain.parameters() if p.grad is not None], kind)
        near = case.near if case.coarse else {"rtol": 1e-9, "atol": 0}
        torch.testing.assert_close(before.cpu(), wanted, **near)
        acc.clip_grad_norm_(model.parameters(), 0.01, kind)
        torch.testing.assert_close(
            acc.clip_grad_norm_(model.parameters(), 1.0, kind).cpu(), torch.tensor(0.01).double(), rtol=1e-3, atol=0
        )
        model.zero_grad()
    acc.backward(model(x).square().sum())
    acc.clip_grad_value_(model.parameters(), 1e-3)
    largest = acc.clip_grad_norm_(model.parameters(), 1.0, float("inf"))
    assert float(largest) == pytest.approx(1e-3, rel=1e-7 if case.coarse else 0)


def check_precision(case: Case, size: int, folder: Path) -> None:
    """Weights stay in full precision, outputs come in it, and what is learned is near; an overflow skips the step on all ranks.

    A strategy that keeps weights in the smaller type has them in full precision, too: in its state.
    """
    x, y = (whole.float() for whole in batch_of(0))
    plain = build().float()
    for precision, near in (("bf16", 0.05), ("fp16", 0.01)):
        scaler = GradScalerKwargs(init_scale=256.0)
        given = [*case.make(size).get("kwargs_handlers", []), scaler]
        acc = case.accelerator(size, mixed_precision=precision, kwargs_handlers=given)
        model = build().float()
        if precision in case.lacks:
            with pytest.raises(ValueError, match=case.lacks[precision]):
                acc.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
            continue
        model, optimizer = acc.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        inputs, wanted = x.to(acc.device), y.to(acc.device)
        output = model(inputs)
        assert output.dtype is torch.float32
        torch.testing.assert_close(output.cpu(), plain(x), rtol=near, atol=near)
        acc.backward(nn.functional.mse_loss(output, wanted))
        optimizer.step()
        assert not acc.optimizer_step_was_skipped
        kept = acc.get_state_dict(model) if case.casts else dict(model.named_parameters())
        assert {value.dtype for name, value in kept.items() if name != "shift"} <= {torch.float32}
        if precision == "fp16":
            optimizer.zero_grad()
            acc.backward(
                nn.functional.mse_loss(model(inputs), wanted) * (float("inf") if acc.process_index == size - 1 else 1.0)
            )
            optimizer.step()
            assert acc.optimizer_step_was_skipped
            acc.scaler.settle()
            assert acc.scaler.get_scale() == 128.0


def check_unused_parameters(case: Case, size: int, folder: Path) -> None:
    """A layer without a part in the loss stays as it is, where the strategy allows for one."""
    if not case.allows_unused:
        return
    wanted, losses, _ = reference(3, spare=True)
    acc = case.accelerator(size)
    model = build(spare=True)
    model, optimizer = acc.prepare(model, optimizer_of(model))
    found, _ = train(acc, model, optimizer, range(3))
    torch.testing.assert_close(torch.tensor(found), torch.tensor(losses), **case.near)
    compare(acc, model, wanted, case.near)


def check_loaders(case: Case, size: int, folder: Path) -> None:
    """For every small length the gathered steps are the data set, each sample once; ranks that share a batch have the same one."""
    acc = case.accelerator(size)
    shares = acc._strategy.data_size
    for length in (1, shares, 7, 4 * shares, 13):
        loader = acc.prepare(DataLoader(torch.arange(float(length)), batch_size=2, shuffle=False))
        seen = []
        for batch in loader:
            every = acc.gather_object([(acc._strategy.data_rank, batch.tolist())])
            assert len({tuple(rows) for share, rows in every if share == acc._strategy.data_rank}) == 1
            seen += acc.gather_for_metrics(batch).tolist()
        assert seen == [float(number) for number in range(length)], (length, seen)
        assert len(loader) == -(-length // (2 * shares))
        acc._dataloaders.clear()


def check_save_model(case: Case, size: int, folder: Path) -> None:
    """The file that others read holds the whole model."""
    acc = case.accelerator(size)
    model = acc.prepare(build())
    acc.save_model(model, folder / f"model-{case.name}")
    acc.wait_for_everyone()
    fresh = build(seed=4)
    fresh.load_state_dict(load_file(folder / f"model-{case.name}" / "model.safetensors"), strict=False)
    wanted = build().state_dict()
    for name, value in fresh.state_dict().items():
        assert torch.equal(value, wanted[name]), name


def check_round_trip(case: Case, size: int, folder: Path) -> None:
    """A run that is saved and loaded goes on as it would have, over an older checkpoint and beside training, too."""
    wanted, losses, _ = reference(6)
    acc = case.accelerator(size)
    model = build()
    model, optimizer = acc.prepare(model, optimizer_of(model))
    target = folder / "saved" / f"{case.name}-{size}"
    train(acc, model, optimizer, range(1))
    acc.save_state(target)
    train(acc, model, optimizer, range(1, 3))
    acc.save_state(target, asynchronous=True)
    train(acc, model, optimizer, range(3, 5))
    acc.wait_for_checkpoint()
    acc.load_state(target)
    found, _ = train(acc, model, optimizer, range(3, 6))
    torch.testing.assert_close(torch.tensor(found), torch.tensor(losses[3:]), **case.near)
    compare(acc, model, wanted, case.near)
    divided = (target / "pytorch_model_fsdp_0").is_dir()
    assert divided == acc._strategy.saves_shards != (target / "model.safetensors").is_file()


def check_z_other_checkpoints(case: Case, size: int, folder: Path) -> None:
    """Checkpoints of other strategies and other numbers of ranks load into a new run, which goes on as theirs would have."""
    wanted, losses, _ = reference(6)
    warnings.simplefilter("ignore")  # that generators of other ranks are unknown is said, and right
    for saved in sorted((folder / "saved").iterdir()):
        acc = case.accelerator(size)
        model = build(seed=5)
        model, optimizer = acc.prepare(model, optimizer_of(model))
        acc.load_state(saved)
        found, _ = train(acc, model, optimizer, range(3, 6))
        near = float32_bound() if case.coarse or saved.name.startswith("deepspeed") else EXACT
        torch.testing.assert_close(torch.tensor(found), torch.tensor(losses[3:]), **near, msg=str(saved))
        compare(acc, model, wanted, near)
    warnings.simplefilter("error")


Check = Callable[[Case, int, Path], None]
CHECKS: dict[str, Check] = {name: check for name, check in globals().items() if name.startswith("check_")}


def run(folder: Path, cases: Mapping[str, Case] = CASES, checks: Mapping[str, Check] = CHECKS, label: str = "") -> None:
    """Every check under every case that this world has room for, the checkpoints of all of them last."""
    first = PartialState()
    size = first.num_processes
    found: dict[str, str] = {}
    file = folder / f"{label or size}-{first.process_index}.json"
    for name, check in checks.items():
        for case in (case for case in cases.values() if case.has(name, size)):
            try:
                check(case, size, folder)
                found[f"{case.name}:{name}"] = ""
            except BaseException:
                found[f"{case.name}:{name}"] = traceback.format_exc()
                raise
            finally:
                file.write_text(json.dumps(found))


if __name__ == "__main__":
    run(Path(sys.argv[1]), DEEPSPEED_CASES if sys.argv[2:] == ["deepspeed"] else CASES)
