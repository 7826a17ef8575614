"""What must hold of the XLA device, as one process sees it; run by the interpreter that has torch_xla.

python -m tests.xla.device_checks FOLDER DEVICES
"""

import copy
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accelkit import DistributedType, FullyShardedDataParallelPlugin, XlaKwargs, set_seed
from accelkit.runtime.errors import SettingError, UnsupportedError
from tests.distributed.strategy_checks import CHECKS, Check, run
from tests.support.strategies import Case, batch_of, build, optimizer_of, reference, train

DEVICES = int(sys.argv[2]) if len(sys.argv) > 2 else 1
WHOLE = Case("xla", lambda _: {}, (1,))
DIVIDED = Case("xla-shard", lambda _: {"kwargs_handlers": [XlaKwargs(shard=True)]}, (1,))
CASE = DIVIDED if DEVICES == 4 else WHOLE
"""What this process tries: the compiler takes its time."""


def layout(tensor: torch.Tensor) -> str:
    """How torch_xla says a tensor lies on the devices."""
    import torch_xla

    found: str = torch_xla._XLAC._get_xla_sharding_spec(tensor)
    return found


def parts(tensor: torch.Tensor) -> list[int]:
    """Elements of a tensor on each device, with those that fill up."""
    from torch_xla.distributed.spmd import wrap_if_sharded

    return [shard.data.numel() for shard in wrap_if_sharded(tensor).local_shards]


def compiled() -> int:
    """Graphs that were compiled so far."""
    from torch_xla.debug import metrics

    return int(metrics.counter_value("UncachedCompile") or 0)


def check_place(case: Case, size: int, folder: Path) -> None:
    """The Accelerator is on the XLA device, is the only process, and has all devices."""
    acc = case.accelerator(size)
    assert acc.device.type == "xla"
    assert acc.distributed_type == acc.state.distributed_type == DistributedType.XLA
    assert (acc.num_processes, acc.process_index, acc.is_main_process) == (1, 0, True)
    assert acc._strategy._count == DEVICES  # type: ignore[attr-defined]
    assert not acc.use_distributed


def check_division(case: Case, size: int, folder: Path) -> None:
    """Where it is asked for, parameters and moments are in parts, a device each, before and after a load; otherwise they are whole."""
    acc = case.accelerator(size)
    model = build()
    model, optimizer = acc.prepare(model, optimizer_of(model))
    target = folder / f"division-{case.name}-{DEVICES}"
    for again in (False, True):
        if again:
            acc.load_state(target)
        train(acc, model, optimizer, range(2))
        moments = [optimizer.state[one]["exp_avg"] for one in model.parameters() if one.requires_grad]
        for tensor in [*model.parameters(), *moments]:
            if case is WHOLE:
                assert "devices=" not in layout(tensor)
            else:
                found = parts(tensor)
                assert len(found) == DEVICES
                assert set(found) == {-(-max(tensor.shape) // DEVICES) * (tensor.numel() // max(tensor.shape))}
        acc.save_state(target)


def check_blocks(case: Case, size: int, folder: Path) -> None:
    """The plug-in for sharding says the same here, its policy included; what XLA cannot do is refused."""
    if case is WHOLE:
        return
    plugin = FullyShardedDataParallelPlugin(transformer_cls_names_to_wrap=["Block"])
    acc = Case("xla", lambda _: {"fsdp_plugin": plugin}).accelerator(size)
    model = build()
    model, optimizer = acc.prepare(model, optimizer_of(model))
    _, losses, _ = reference(3)
    found, _ = train(acc, model, optimizer, range(3))
    torch.testing.assert_close(torch.tensor(found), torch.tensor(losses), rtol=1e-9, atol=1e-11)
    assert "devices=" in layout(model.blocks[0].up.weight)
    for name in ("cpu_offload", "activation_checkpointing", "ignored_modules"):
        refused = Case(
            "xla",
            lambda _, name=name: {
                "fsdp_plugin": FullyShardedDataParallelPlugin(**{name: "enter" if name == "ignored_modules" else True})
            },
        )
        assert name in refusal(UnsupportedError, refused, size)


def refusal(kind: type[Exception], case: Case, size: int) -> str:
    """What is said against an Accelerator."""
    try:
        case.accelerator(size)
    except kind as error:
        return str(error)
    raise AssertionError(f"{case.name} was not refused")


def check_compiles(case: Case, size: int, folder: Path) -> None:
    """A loop compiles in its first steps, and then no more, although the rate of learning changes; a step that no loader ends ends, too."""
    acc = case.accelerator(size)
    model = build()
    data = TensorDataset(*(torch.cat(parts) for parts in zip(*(batch_of(step) for step in range(8)), strict=True)))
    plain = optimizer_of(model)
    schedule = torch.optim.lr_scheduler.ExponentialLR(plain, 0.9)
    model, optimizer, loader, schedule = acc.prepare(model, plain, DataLoader(data, batch_size=16), schedule)
    counts, rows = [], []
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        acc.backward(loss)
        acc.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        counts.append(compiled())
        rows.append(layout(x))
    assert len(set(counts[3:])) == 1, counts
    assert all(("devices=" in row) == (DEVICES > 1) for row in rows), rows


def check_generator(case: Case, size: int, folder: Path) -> None:
    """Seeding and checkpoints reach the device's generator: what it draws comes again."""
    acc = case.accelerator(size)
    set_seed(11)
    first = torch.rand(5, device=acc.device).cpu()
    acc.save_state(folder / f"generator-{case.name}-{DEVICES}")
    second = torch.rand(5, device=acc.device).cpu()
    assert not torch.equal(first, second)
    set_seed(11)
    assert torch.equal(first, torch.rand(5, device=acc.device).cpu())
    acc.load_state(folder / f"generator-{case.name}-{DEVICES}")
    assert torch.equal(second, torch.rand(5, device=acc.device).cpu())


def check_operations(case: Case, size: int, folder: Path) -> None:
    """Collective operations are those of one process, for tensors of the device and for objects."""
    acc = case.accelerator(size)
    tensor = torch.arange(6.0, device=acc.device).view(3, 2)
    data: dict[str, Any] = {"a": tensor, "b": [tensor + 1]}
    assert acc.gather(data)["b"][0].tolist() == (tensor + 1).tolist()
    assert acc.gather_for_metrics(tensor).tolist() == tensor.tolist()
    assert acc.pad_across_processes(tensor, dim=1).tolist() == tensor.tolist()
    assert acc.reduce(tensor, "mean", scale=2.0).tolist() == (tensor * 2).tolist()
    assert acc.reduce(tensor).device == acc.device
    assert acc.broadcast(copy.copy(data))["a"].tolist() == tensor.tolist()
    assert acc.gather_object(["x", 1]) == ["x", 1]
    assert acc.broadcast_object_list([{"y": 2}]) == [{"y": 2}]
    acc.wait_for_everyone()


def check_loader(case: Case, size: int, folder: Path) -> None:
    """Batches are on the device, each device has rows of them, odd ones included; without placement they stay where they are."""
    acc = case.accelerator(size)
    data = [{"x": torch.tensor([float(number)]), "name": str(number)} for number in range(7)]
    seen: list[Any] = []
    for batch in acc.prepare(DataLoader(data, batch_size=4)):
        assert batch["x"].device == acc.device
        seen += zip((batch["x"] * 2).flatten().tolist(), batch["name"], strict=True)
    assert seen == [(2.0 * number, str(number)) for number in range(7)]
    loader = acc.prepare_data_loader(DataLoader(data, batch_size=4), device_placement=False)
    assert {batch["x"].device.type for batch in loader} == {"cpu"}


def check_files(case: Case, size: int, folder: Path) -> None:
    """Single files hold tensors that any machine loads, in both formats; tensors of one shape are not taken for one."""
    acc = case.accelerator(size)
    data = {"a": torch.ones(2, 2, device=acc.device), "b": torch.zeros(2, 2, device=acc.device)}
    acc.save(data, folder / f"plain-{case.name}-{DEVICES}.bin")
    acc.save(data, folder / f"plain-{case.name}-{DEVICES}.safetensors", safe_serialization=True)
    for found in (
        load_file(folder / f"plain-{case.name}-{DEVICES}.safetensors"),
        torch.load(folder / f"plain-{case.name}-{DEVICES}.bin", weights_only=True),
    ):
        assert found["a"].device.type == "cpu"
        assert (found["a"].sum(), found["b"].sum()) == (4, 0)


def check_evaluation(case: Case, size: int, folder: Path) -> None:
    """A model that is only evaluated is on the device with its ties, and gives what it gives on the CPU."""
    acc = case.accelerator(size)
    model = acc.prepare_model(build(), evaluation_mode=True)
    x, _ = batch_of(0)
    assert model.leave.weight is model.enter.weight
    torch.testing.assert_close(model(x.to(acc.device)).cpu(), build()(x), rtol=1e-9, atol=1e-11)


def check_optimizer_with_a_past(case: Case, size: int, folder: Path) -> None:
    """An optimizer that has stepped before, prepared before its model, goes on with its moments."""
    wanted, losses, _ = reference(4)
    acc = case.accelerator(size)
    model = build()
    optimizer = optimizer_of(model)
    for step in range(2):
        x, y = batch_of(step)
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer = acc.prepare(optimizer)
    model = acc.prepare(model)
    found, _ = train(acc, model, optimizer, range(2, 4))
    torch.testing.assert_close(torch.tensor(found), torch.tensor(losses[2:]), rtol=1e-9, atol=1e-11)
    for name, value in acc.get_state_dict(model).items():
        torch.testing.assert_close(value, wanted.state_dict()[name], rtol=1e-9, atol=1e-11)


def check_contradictions(case: Case, size: int, folder: Path) -> None:
    """Strategies of other devices are refused on this one, and say what to use."""
    for name in ("ddp", "fsdp", "single"):
        assert "'auto' or 'xla'" in refusal(SettingError, Case(name, lambda _, name=name: {"strategy": name}), size)


OWN: dict[str, Check] = {name: check for name, check in globals().items() if name.startswith("check_")}

if __name__ == "__main__":
    run(Path(sys.argv[1]), {"own": CASE}, OWN, f"own-{DEVICES}")
    named = Case(f"{CASE.name}-{DEVICES}", CASE.make, (1,), expected="xla")
    run(Path(sys.argv[1]), {"suite": named}, CHECKS, f"suite-{DEVICES}")
