"""What must hold of the tools around a loop on several ranks. Run once per rank; each check's outcome goes to a file.

python -m tests.distributed.tools_checks FOLDER
"""

import contextlib
import copy
import json
import logging
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from accelkit import (
    Accelerator,
    GeneralTracker,
    LocalSGD,
    ProfileKwargs,
    SettingError,
    TorchDynamoPlugin,
    dispatch_model,
    get_logger,
)
from accelkit.utils import compile_regions, has_compiled_regions, is_compiled_module

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path()


class Notes(GeneralTracker):
    """Writes down what it is asked."""

    name = "notes"
    requires_logging_directory = False

    def __init__(self, everywhere: bool) -> None:
        super().__init__()
        self.main_process_only = not everywhere
        self.seen: list[Any] = []

    @property
    def tracker(self) -> list[Any]:
        """What was asked."""
        return self.seen

    def start(self) -> None:
        """Begin."""
        self.seen.append("start")

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Values."""
        self.seen.append((values, step))

    def finish(self) -> None:
        """End."""
        self.seen.append("finish")


class Everywhere(Notes):
    """One of another name."""

    name = "everywhere"


def check_trackers_run_on_rank_0_unless_they_say_else(acc: Accelerator) -> None:
    """Rank 0 has both trackers, the others the one that is for all; asking for the other gives one that takes any call."""
    main, everywhere = Notes(everywhere=False), Everywhere(everywhere=True)
    mine = Accelerator(log_with=[main, everywhere])
    mine.init_trackers("project", {"a": 1})
    mine.log({"loss": torch.tensor(1.0)}, step=2)
    mine._tracking.finish()
    whole = ["start", ({"loss": 1.0}, 2), "finish"]
    assert everywhere.seen == whole
    assert main.seen == (whole if acc.is_main_process else [])
    quiet = Accelerator(log_with=Notes(everywhere=False))
    quiet.init_trackers("project")
    found = quiet.get_tracker("notes")
    assert isinstance(found, GeneralTracker)
    assert isinstance(found, Notes) == acc.is_main_process
    if not acc.is_main_process:
        assert found.log_table("x", data=[[1]]) is None


def check_the_record_is_rank_0s(acc: Accelerator) -> None:
    """One line per call, whatever the number of ranks; odd values are refused before anything is written."""
    acc.log({"loss": 0.5 + acc.process_index}, step=1)
    acc.wait_for_everyone()
    lines = [json.loads(line) for line in (FOLDER / "metrics.jsonl").read_text().splitlines()]
    assert [line["values"] for line in lines] == [{"loss": 0.5}]
    try:
        acc.log({"x": [1]})
    except SettingError:
        assert acc.is_main_process
    else:
        assert not acc.is_main_process


def check_logging_in_order(acc: Accelerator) -> None:
    """Lines of all ranks in the order of ranks, round after round; otherwise rank 0 alone; a level that differs makes nobody wait."""
    file = FOLDER / "log.txt"
    logger = get_logger("checks", "DEBUG")
    handler = logging.FileHandler(file, mode="a")
    logger.logger.addHandler(handler)
    for turn in range(3):
        logger.info("turn %d", turn, in_order=True)
    logger.info("main")
    logger.setLevel("INFO" if acc.process_index else "DEBUG")
    logger.debug("quiet elsewhere", in_order=True)
    acc.wait_for_everyone()
    handler.close()
    logger.logger.removeHandler(handler)
    expected = [f"[RANK {rank}] turn {turn}" for turn in range(3) for rank in range(acc.num_processes)]
    assert file.read_text().splitlines() == [*expected, "[RANK 0] main", "[RANK 0] quiet elsewhere"]


def check_who_runs_what(acc: Accelerator) -> None:
    """Decorated functions run where they say, return None elsewhere, and keep name and documentation."""

    def where() -> int:
        """Which rank."""
        return acc.process_index

    last = acc.num_processes - 1
    for decorated, rank in (
        (acc.on_main_process(where), 0),
        (acc.on_local_main_process(where), 0),
        (acc.on_last_process(where), last),
        (acc.on_process(where, process_index=1), 1),
        (acc.on_process(process_index=1)(where), 1),
        (acc.on_local_process(local_process_index=last)(where), last),
    ):
        assert decorated() == (rank if acc.process_index == rank else None)
        assert (decorated.__name__, decorated.__doc__) == ("where", "Which rank.")


def check_going_first(acc: Accelerator) -> None:
    """Rank 0 is through before the others enter; when its block fails, the others do not wait for ever."""
    for block in (acc.main_process_first, acc.local_main_process_first):
        file = FOLDER / f"{block.__name__}.txt"
        with block():
            assert file.exists() != acc.is_main_process
            file.write_text("x")
    failing = pytest.raises(RuntimeError, match="no download") if acc.is_main_process else contextlib.nullcontext()
    with failing, acc.main_process_first():
        if acc.is_main_process:
            raise RuntimeError("no download")
    acc.wait_for_everyone()


def check_a_trace_per_rank(acc: Accelerator) -> None:
    """Every rank writes its own Chrome trace, and all are there when the block is left."""
    with acc.profile(ProfileKwargs(activities=["cpu"], output_trace_dir=str(FOLDER / "traces"))):
        torch.ones(4, 4) @ torch.ones(4, 4)
    names = sorted(path.name for path in (FOLDER / "traces").iterdir())
    assert names == [f"profile_{rank}.json" for rank in range(acc.num_processes)]


def check_progress_bars(acc: Accelerator) -> None:
    """One bar per node, unless all are asked for; everybody iterates."""
    try:
        import tqdm as _  # noqa: F401
    except ImportError:
        return
    from accelkit.utils import tqdm

    for only_main, shown in ((True, acc.is_main_process), (False, True)):
        bar = tqdm(range(3), main_process_only=only_main, file=(FOLDER / f"bar{acc.process_index}").open("w"))
        assert bar.disable is not shown
        assert list(bar) == [0, 1, 2]


def make_data(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What a rank trains on."""
    x = torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(8, 3) + rank
    return x, x.sin().sum(1, keepdim=True)


def make_model() -> nn.Module:
    """Always the same model, one parameter of it frozen."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    model[0].bias.requires_grad_(False)
    return model


def train_by_hand(size: int, steps: int, every: int) -> nn.Module:
    """Local SGD of all ranks in one process: the average of models, every few steps and at the end."""
    ranks = [make_model() for _ in range(size)]
    for step in range(1, steps + 1):
        for rank, model in enumerate(ranks):
            x, y = make_data(rank)
            model.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            torch.optim.SGD(model.parameters(), 0.1).step()
        if step % every == 0 or step == steps:
            mean = {n: sum(m.state_dict()[n] for m in ranks) / size for n in ranks[0].state_dict()}
            for model in ranks:
                model.load_state_dict(mean)
    return ranks[0]


def train_locally(acc: Accelerator, steps: int, every: int, enabled: bool = True) -> nn.Module:
    """The same through LocalSGD."""
    model = acc.prepare(make_model())
    optimizer = acc.prepare(torch.optim.SGD(model.parameters(), 0.1))
    x, y = make_data(acc.process_index)
    with LocalSGD(accelerator=acc, model=model, local_sgd_steps=every, enabled=enabled) as local_sgd:
        for _ in range(steps):
            optimizer.zero_grad()
            acc.backward(nn.functional.mse_loss(model(x), y))
            optimizer.step()
            local_sgd.step()
    inner: nn.Module = acc.unwrap_model(model)
    acc.free_memory()
    return inner


def check_local_sgd_is_the_average(acc: Accelerator) -> None:
    """For every interval, whether it divides the steps or not: the models of one process, averaged by hand. Every step: plain DDP."""
    for steps, every in ((4, 1), (4, 2), (5, 2), (3, 7)):
        found, expected = train_locally(acc, steps, every), train_by_hand(acc.num_processes, steps, every)
        for name, value in expected.state_dict().items():
            torch.testing.assert_close(found.state_dict()[name], value, rtol=1e-12, atol=1e-12)
    plain, every_step = train_locally(acc, 4, 2, enabled=False), train_locally(acc, 4, 1)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(every_step.state_dict()[name], value, rtol=1e-12, atol=1e-12)


def check_local_sgd_with_accumulation(acc: Accelerator) -> None:
    """Inside of the block windows of two micro-batches end without synchronisation, too: the steps are those of whole batches."""
    acc.gradient_accumulation_steps = 2
    model = acc.prepare(make_model())
    optimizer = acc.prepare(torch.optim.SGD(model.parameters(), 0.1))
    x, y = make_data(acc.process_index)
    with LocalSGD(accelerator=acc, model=model, local_sgd_steps=4) as local_sgd:
        for half in [slice(0, 4), slice(4, 8)] * 3:
            with acc.accumulate(model):
                acc.backward(nn.functional.mse_loss(model(x[half]), y[half]))
                optimizer.step()
                optimizer.zero_grad()
                local_sgd.step()
    found, expected = acc.unwrap_model(model), train_by_hand(acc.num_processes, 3, 2)
    acc.free_memory()
    acc.gradient_accumulation_steps = 1
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], value, rtol=1e-12, atol=1e-12)


def check_divided_models_are_not_trained(acc: Accelerator) -> None:
    """A model of which parts are on disk is refused where it would be trained, and runs on every rank for inference."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    expected = model(torch.ones(1, 2)).detach()
    folder = FOLDER / f"offload{acc.process_index}"
    divided = dispatch_model(model, {"0": "cpu", "1": "disk"}, offload_dir=folder)
    with pytest.raises(
        ValueError, match="strategy 'ddp' trains a model that each rank's device holds, and this Sequential"
    ):
        acc.prepare_model(divided)
    ready = acc.prepare_model(divided, evaluation_mode=True)
    assert torch.equal(ready(torch.ones(1, 2)), expected)
    acc.free_memory()


def check_generators_follow_rank_0(acc: Accelerator) -> None:
    """With rng_types all ranks draw the same during each epoch, views that skip included; without it each goes on by itself."""
    for rng_types, equal in ((["torch", "generator"], True), (None, False)):
        mine = Accelerator(rng_types=rng_types)
        loader = mine.prepare(torch.utils.data.DataLoader(torch.arange(8), batch_size=2))
        torch.manual_seed(acc.process_index)
        for view in (loader, loader, mine.skip_first_batches(loader, 1)):
            for _ in view:
                drawn = mine.gather(torch.rand(1))
                assert (drawn.unique().numel() == 1) == equal
            torch.rand(acc.process_index)
        mine.free_memory()


def check_compiled_ddp(acc: Accelerator) -> None:
    """Compiled whole or by regions, by a plug-in, before or after prepare: the gradients of plain DDP, synchronised when they are due."""
    plain = nn.ModuleList([make_model(), make_model()])
    net = nn.Sequential(plain[0], nn.Linear(1, 3).double(), plain[1])
    ways = {
        "plain": acc.prepare,
        "plugin": lambda m: Accelerator(dynamo_plugin=TorchDynamoPlugin(backend="aot_eager")).prepare(m),
        "regional plugin": lambda m: Accelerator(
            dynamo_plugin=TorchDynamoPlugin(backend="aot_eager", use_regional_compilation=True)
        ).prepare(m),
        "before": lambda m: acc.prepare(torch.compile(m, backend="aot_eager")),
        "after": lambda m: torch.compile(acc.prepare(m), backend="aot_eager"),
        "regions before": lambda m: acc.prepare(compile_regions(m, backend="aot_eager")),
    }
    expected = None
    for name, way in ways.items():
        found = _gradients(acc, way(copy.deepcopy(net)), is_compiled=name != "plain")
        expected = expected or found
        for mine, other in zip(found, expected, strict=True):
            torch.testing.assert_close(
                mine, other, rtol=1e-10, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}"
            )
        torch._dynamo.reset()


def _gradients(acc: Accelerator, model: Any, is_compiled: bool) -> list[torch.Tensor]:
    """Gradients after a step without synchronisation and one with; ranks must differ after the first, and agree after the second."""
    inner = acc.unwrap_model(model, keep_torch_compile=False)
    wrapped = [model, getattr(model, "_orig_mod", None), getattr(model, "module", None)]
    looked_at = [module for module in wrapped if isinstance(module, nn.Module)]
    assert any(is_compiled_module(m) or has_compiled_regions(m) for m in looked_at) == is_compiled
    x, _ = make_data(acc.process_index)
    with acc.no_sync(model):
        model(x).sum().backward()
    local = [parameter.grad.clone() for parameter in inner.parameters() if parameter.grad is not None]
    assert not torch.equal(acc.gather(local[0]), torch.cat([local[0]] * acc.num_processes))
    model(x).sum().backward()
    summed = [parameter.grad for parameter in inner.parameters() if parameter.grad is not None]
    for gradient in summed:
        torch.testing.assert_close(acc.gather(gradient[None]), torch.stack([gradient] * acc.num_processes))
    return summed


def check_zz_the_end(acc: Accelerator) -> None:
    """end_training takes the process group down, on every rank; again is harmless."""
    assert dist.is_initialized()
    acc.end_training()
    assert not dist.is_initialized()
    acc.end_training()


def main() -> None:
    """Run all checks in order; write what each found."""
    acc = Accelerator()
    found: dict[str, str] = {}
    for name, check in sorted((name, check) for name, check in globals().items() if name.startswith("check_")):
        try:
            check(acc)
            found[name] = ""
        except Exception:  # noqa: BLE001  (whatever it is, the test shows it)
            found[name] = traceback.format_exc()
        (FOLDER / f"{acc.process_index}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
