"""What must hold of checkpoints in a world of several ranks. Run once per rank; see `world_checks.py`.

python -m tests.distributed.checkpoint_checks FOLDER
"""

import json
import os
import random
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from accelkit import Accelerator, CheckpointError, ProjectConfiguration, SettingError, set_seed
from accelkit.runtime.checkpoint import names
from accelkit.runtime.checkpoint.digest import DigestingFile
from tests.support.checkpoints import flip


def build(acc: Accelerator, **more: Any) -> tuple[nn.Module, Any]:
    """A prepared model and its optimizer, trained a step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 2))
    ready: tuple[nn.Module, Any] = acc.prepare(model, torch.optim.AdamW(model.parameters(), **more))
    advance(acc, *ready)
    return ready


def advance(acc: Accelerator, model: nn.Module, optimizer: Any) -> float:
    """One step on random numbers of this rank."""
    loss = model(torch.rand(3, 4)).square().mean()
    acc.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.detach())


def raised(call: Callable[[], Any]) -> Exception | None:
    """What a call raises."""
    try:
        call()
    except Exception as error:  # noqa: BLE001  (whatever it raises is what is asked for)
        return error
    return None


def own(**settings: Any) -> Accelerator:
    """Another Accelerator of this world."""
    return Accelerator(**settings)


def check_round_trip(folder: Path) -> None:
    """Waiting or beside training: every rank's next losses are what they would have been, with its own random numbers."""
    for beside in (False, True):
        acc = own()
        model, optimizer = build(acc)
        set_seed(1, device_specific=True)
        target = folder / f"trip-{beside}"
        acc.save_state(target, asynchronous=beside)
        wanted = [advance(acc, model, optimizer) for _ in range(3)]
        draws = [random.random(), float(torch.rand(()))]
        acc.load_state(target)
        assert [advance(acc, model, optimizer) for _ in range(3)] == wanted
        assert [random.random(), float(torch.rand(()))] == draws
        assert len(set(acc.gather_object([draws[0]]))) == acc.num_processes
        expected = {names.rank(rank) for rank in range(acc.num_processes)}
        assert {path.name for path in target.glob("random_states_*")} == expected
        acc.wait_for_everyone()


def check_failures_are_everybodys(folder: Path) -> None:
    """What fails on one rank, in a hook or while it writes, fails on all with its name; nothing is left; the next save is good."""
    acc = own()
    build(acc)
    last = acc.num_processes - 1

    def fail(*_: Any) -> None:
        if acc.process_index == last:
            raise KeyError("rank's own")

    handle = acc.register_save_state_pre_hook(fail)
    judge(acc, raised(lambda: acc.save_state(folder / "failing")), KeyError, last)
    handle.remove()
    write = DigestingFile.write
    for beside in (False, True):
        if acc.process_index == last:
            DigestingFile.write = fail  # type: ignore[assignment, method-assign]

        def save(beside: bool = beside) -> None:
            acc.save_state(folder / "failing", asynchronous=beside)
            acc.wait_for_checkpoint()

        error = raised(save)
        DigestingFile.write = write  # type: ignore[method-assign]
        judge(acc, error, KeyError, last)
        acc.wait_for_everyone()
        assert not [path for path in folder.iterdir() if "failing" in path.name]
        acc.wait_for_everyone()
    acc.save_state(folder / "failing")
    acc.load_state(folder / "failing")
    handle = acc.register_load_state_pre_hook(fail)
    judge(acc, raised(lambda: acc.load_state(folder / "failing")), KeyError, last)
    handle.remove()


def judge(acc: Accelerator, error: Exception | None, kind: type, rank: int) -> None:
    """The rank concerned has its own error, all others one that names it."""
    if acc.process_index == rank:
        assert isinstance(error, kind), error
    else:
        assert isinstance(error, CheckpointError), error
        assert f"rank {rank}: {kind.__name__}" in str(error)


def check_settings_of_rank_0(folder: Path) -> None:
    """A folder that rank 0 refuses is refused on all."""
    acc = own()
    (folder / "file").write_text("x")
    judge(acc, raised(lambda: acc.save_state(folder / "file")), SettingError, 0)
    error = raised(lambda: acc.load_state(folder / "nowhere"))
    assert isinstance(error, SettingError)
    assert "does not exist" in str(error)


def check_damage(folder: Path) -> None:
    """A changed byte in any file, a missing file: refused on every rank, whichever looked, and no rank has changed."""
    acc = own()
    model, _ = build(acc)
    target = folder / "damaged"
    for file in ("model.safetensors", "optimizer.bin", names.rank(0), names.rank(acc.num_processes - 1)):
        acc.save_state(target)
        acc.wait_for_everyone()
        if acc.is_main_process:
            flip(target / file, 100)
        acc.wait_for_everyone()
        with torch.no_grad():
            weight = next(model.parameters()).fill_(float(acc.process_index))
        error = raised(lambda: acc.load_state(target))
        assert isinstance(error, CheckpointError), error
        assert file in str(error)
        assert bool((weight == acc.process_index).all())
        acc.load_state(folder / "trip-True", strict=False)


def check_beside_training(folder: Path) -> None:
    """While checkpoints are written one after the other training's collectives go on, and none meets the wrong one."""
    acc = own()
    model, optimizer = build(acc)
    for number in range(4):
        acc.save_state(folder / f"beside-{number % 2}", asynchronous=True)
        while True:  # as long as no rank is ready, and at least once: ranks do not see the end at the same step
            advance(acc, model, optimizer)
            total = acc.reduce(torch.tensor(float(acc.process_index)))
            assert float(total) == sum(range(acc.num_processes))
            more = acc.gather(torch.tensor([acc._background._current.done]))  # type: ignore[union-attr]
            if bool(more.any()):
                break
        if acc.is_last_process:
            time.sleep(0.05)  # ranks come to the next save at different times
    acc.wait_for_checkpoint()
    acc.load_state(folder / "beside-1")


def check_numbers(folder: Path) -> None:
    """Ranks agree on automatic names; one of them removes the oldest; a resume counts on."""
    config = ProjectConfiguration(str(folder / "numbered"), automatic_checkpoint_naming=True, total_limit=2)
    acc = own(project_config=config)
    build(acc)
    for number in range(12):
        acc.save_state(asynchronous=number % 3 == 0)
    acc.wait_for_checkpoint()
    assert sorted(path.name for path in config.checkpoints.iterdir()) == ["checkpoint_10", "checkpoint_11"]
    acc.wait_for_everyone()
    config = ProjectConfiguration(str(folder / "numbered"), automatic_checkpoint_naming=True, total_limit=2)
    acc = own(project_config=config)
    build(acc)
    acc.load_state()
    assert acc.save_state().name == "checkpoint_12"
    acc.wait_for_everyone()


def check_threads(folder: Path) -> None:
    """Threads of every rank save at the same time: one save after the other, each whole and with a number of its own."""
    acc = Accelerator(project_config=ProjectConfiguration(str(folder / "threads"), automatic_checkpoint_naming=True))
    build(acc)
    with ThreadPoolExecutor(2) as pool:
        paths = [one.result() for one in [pool.submit(acc.save_state) for _ in range(4)]]
    assert {path.name for path in paths} == {f"checkpoint_{number}" for number in range(4)}
    for path in sorted(paths):
        acc.load_state(path)


def check_nodes_of_their_own(folder: Path) -> None:
    """Where each rank is a node with files of its own, each has a whole checkpoint of its own, and loads from it."""
    acc = own(project_config=ProjectConfiguration(save_on_each_node=True))
    world, home = acc._partial.world, Path.cwd()
    acc._partial.world = replace(world, local_rank=0)
    mine = folder / f"node-{acc.process_index}"
    mine.mkdir()
    os.chdir(mine)
    try:
        model, optimizer = build(acc)
        for beside in (False, True):
            acc.save_state("a", asynchronous=beside)
            wanted = advance(acc, model, optimizer)
            acc.load_state("a")
            assert advance(acc, model, optimizer) == wanted
            found = {path.name for path in (mine / "a").iterdir()}
            assert {"model.safetensors", "optimizer.bin", names.rank(acc.process_index)} <= found
            assert names.rank(1 - acc.process_index) not in found
        acc.save_model(model, "m")
        assert (mine / "m" / "model.safetensors").exists()
        acc.wait_for_everyone()
        if acc.process_index == 1:
            flip(mine / "a" / "model.safetensors", 300)
        acc.wait_for_everyone()
        error = raised(lambda: acc.load_state("a"))
        assert isinstance(error, CheckpointError)
    finally:
        os.chdir(home)
        acc._partial.world = world


def check_models_and_objects(folder: Path) -> None:
    """save_model and save write once; names are the model's own; what fails on rank 0 fails on all."""
    acc = own()
    model, _ = build(acc)
    assert list(acc.get_state_dict(model)) == list(acc.unwrap_model(model).state_dict())
    assert all(name.startswith("module.") for name in acc.get_state_dict(model, unwrap=False))
    acc.save_model(model, folder / "model", max_shard_size="500B")
    assert (folder / "model" / "model.safetensors.index.json").exists()
    error = raised(lambda: acc.save_model(model, folder / "model", max_shard_size="5 parsecs"))
    judge(acc, error, SettingError, 0)
    acc.save({"rank": acc.process_index}, folder / "object.pt")
    acc.wait_for_everyone()
    assert torch.load(folder / "object.pt") == {"rank": 0}


def check_z_the_end_waits(folder: Path) -> None:
    """end_training returns when the checkpoint that was being written is complete, and the group is still there for it."""
    acc = own()
    build(acc)
    handle = acc.save_state(folder / "last", asynchronous=True)
    acc.end_training()
    assert handle.done
    assert handle.wait() == folder / "last"
    assert (folder / "last" / "checkpoint.json").exists()


def main() -> None:
    """Run all checks in order. The first that fails ends this rank, and the message is in the file."""
    acc = Accelerator()
    found: dict[str, str] = {}
    folder = Path(sys.argv[1])
    for name, check in [item for item in globals().items() if item[0].startswith("check_")]:
        try:
            check(folder)
            if torch.distributed.is_initialized():
                acc.wait_for_everyone()
        except BaseException:
            found[name] = traceback.format_exc()
            raise
        else:
            found[name] = ""
        finally:
            (folder / f"{acc.process_index}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
