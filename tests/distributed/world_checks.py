"""What must hold in a world of several ranks. Run once per rank; each check's outcome goes to a file that the test reads.

python -m tests.distributed.world_checks FOLDER
"""

import itertools
import sys
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from accelkit import Accelerator, DataLoaderConfiguration, DistributedDataParallelKwargs, GradientState
from accelkit.runtime.errors import SettingError, UnsupportedError
from tests.distributed.collective_checks import (  # noqa: F401  (the checks are found among this module's names)
    check_broadcast,
    check_broadcast_refuses_what_cannot_be_filled,
    check_gather_every_dtype_and_shape,
    check_gather_of_every_size,
    check_gather_refuses_what_differs,
    check_gather_structures,
    check_objects,
    check_one_exchange_per_operation,
    check_pad,
    check_reduce,
    check_results_do_not_change_later,
    check_state,
    check_the_other_operations_between_machines,
    expect,
)
from tests.support.checks import run_checks


class Stream(IterableDataset[Any]):
    """Numbers as a stream, without a length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Any:
        return (torch.tensor(float(number)) for number in range(self.length))


def check_metrics_are_the_data_set(acc: Accelerator) -> None:
    """For every length, batch size, drop_last and way of dividing, the gathered steps are the data set, in order."""
    for length, batch, drop in itertools.product(range(1, 18), (1, 3, 4), (False, True)):
        for split, kind in itertools.product((False, True), ("map", "stream")):
            if split and batch % acc.num_processes:
                continue
            acc.dataloader_config = DataLoaderConfiguration(split_batches=split)
            data: Any = Stream(length) if kind == "stream" else torch.arange(float(length))
            loader = acc.prepare(DataLoader(data, batch_size=batch, drop_last=drop))
            seen, texts = [], []
            for x in loader:
                gathered, losses = acc.gather_for_metrics((x, x.sum()))
                assert losses.shape == (acc.num_processes,)
                seen += gathered.tolist()
                if batch == 3:
                    texts += acc.gather_for_metrics({"t": [str(v) for v in x.tolist()]})["t"]
            per_round = batch if split else batch * acc.num_processes
            kept = length // per_round * per_round if drop else length
            assert seen == [float(number) for number in range(kept)], (length, batch, drop, split, kind)
            assert texts == [str(number) for number in seen] or batch != 3
            acc._dataloaders.clear()
    acc.dataloader_config = DataLoaderConfiguration()


def check_only_samples_are_cut(acc: Accelerator) -> None:
    """In an uneven last step, what does not count samples is gathered whole; 11 texts stay 11, after a skip too."""
    loader = acc.prepare(DataLoader(list(range(11)), batch_size=2, collate_fn=lambda rows: rows))
    rest = acc.skip_first_batches(loader, 1)
    assert [row for rows in loader for row in acc.gather_for_metrics(rows)] == list(range(11))
    assert [row for rows in rest for row in acc.gather_for_metrics(rows)] == list(range(2 * acc.num_processes, 11))
    for kind in (np.int64, np.float32, str, object):
        found = [acc.gather_for_metrics({"preds": np.array(rows).astype(kind)})["preds"] for rows in loader]
        assert all(part.dtype == np.array([1]).astype(kind).dtype or kind is str for part in found)
        assert [int(row) for part in found for row in part] == list(range(11))
    assert [row for rows in loader for row in acc.gather_for_metrics([[row] * row for row in rows])] == [
        [row] * row for row in range(11)
    ]
    for rows in loader:
        other = acc.gather_for_metrics((torch.ones(3), torch.ones(len(rows)), torch.tensor(1.0)))
    assert other[0].shape == (3 * acc.num_processes,)
    assert other[2].shape == (acc.num_processes,)
    assert other[1].shape == (11 % (2 * acc.num_processes) or 2 * acc.num_processes,)
    assert acc.gather_for_metrics(torch.ones(2)).shape == (2 * acc.num_processes,), "outside loops nothing is cut"
    acc.free_memory()


def check_shuffling_agrees_although_ranks_do_not(acc: Accelerator) -> None:
    """Ranks with different seeds shuffle alike, because rank 0 decides once; epochs differ."""
    torch.manual_seed(acc.process_index)
    loader = acc.prepare(DataLoader(torch.arange(13.0), batch_size=2, shuffle=True))
    epochs = [torch.cat([acc.gather_for_metrics(x) for x in loader]).tolist() for _ in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [[float(n) for n in range(13)]] * 2
    assert epochs[0] != epochs[1]
    acc.free_memory()


class Pairs(IterableDataset[Any]):
    """The samples of another data set as a stream."""

    def __init__(self, pairs: Any) -> None:
        self.pairs = pairs

    def __iter__(self) -> Any:
        return (self.pairs[place] for place in range(len(self.pairs)))


def train(acc: Accelerator | None, steps: int, batch: int, accumulate: int = 1, kind: str = "map") -> list[float]:
    """Weights and rates after a short training; without an Accelerator the plain loop of one process."""
    torch.manual_seed(3)
    model: nn.Module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    inputs = torch.linspace(-1, 1, 48 * 4, dtype=torch.float64).reshape(48, 4)
    targets = inputs.sin().sum(1, keepdim=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    pairs = TensorDataset(inputs, targets)
    parts = acc.num_processes if acc is not None and "split" in kind else 1
    loader: Any = DataLoader(Pairs(pairs) if "stream" in kind else pairs, batch_size=batch * parts)
    if acc is None:
        for _, (x, y) in zip(range(steps), itertools.cycle(loader), strict=False):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    else:
        acc.gradient_accumulation_steps = accumulate
        acc.dataloader_config = DataLoaderConfiguration(split_batches=parts > 1, dispatch_batches="dispatched" in kind)
        model, schedule, optimizer, loader = acc.prepare(model, schedule, optimizer, loader)
        done = 0
        while done < steps:
            for x, y in loader:
                with acc.accumulate(model):
                    acc.backward(nn.functional.mse_loss(model(x), y))
                    acc.clip_grad_norm_(model.parameters(), 0.5)
                    optimizer.step()
                    schedule_before = schedule.get_last_lr()[0]
                    optimizer.zero_grad()
                assert schedule_before == schedule.get_last_lr()[0]
                done += acc.sync_gradients
                if done == steps:
                    break
        model = acc.unwrap_model(model)
        acc.gradient_accumulation_steps = 1
        acc.dataloader_config = DataLoaderConfiguration()
        acc.free_memory()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()


def check_training_equals_one_process(acc: Accelerator) -> None:
    """Ranks with a share of each batch, accumulating or not, end where one process with the whole batch ends."""
    size = acc.num_processes
    whole = torch.tensor(train(None, 8, 12))
    ranks = torch.tensor(train(acc, 8, 12 // size))
    windows = torch.tensor(train(acc, 8, 12 // size // 2, accumulate=2))
    torch.testing.assert_close(ranks, whole, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(windows, whole, rtol=1e-9, atol=1e-12)
    assert torch.equal(acc.gather(ranks[None]), ranks.expand(size, -1)), "ranks have the same weights, bit for bit"


def check_every_kind_of_loader_trains_alike(acc: Accelerator) -> None:
    """Streams, batches that are split, and batches that rank 0 hands out give the very weights that map-style data gives."""
    size = acc.num_processes
    for accumulate in (1, 2):
        wanted = train(acc, 8, 12 // size // accumulate, accumulate)
        for kind in (
            "stream",
            "map split",
            "stream split",
            "map dispatched",
            "stream dispatched",
            "stream split dispatched",
        ):
            assert train(acc, 8, 12 // size // accumulate, accumulate, kind) == wanted, kind


def check_schedules_move_once_per_rank(acc: Accelerator) -> None:
    """After a step of n ranks a schedule is where n steps of one process would be; it waits while accumulating."""
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    moving = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    following = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    model, optimizer, moving, following = acc.prepare(model, optimizer, moving, following)
    acc.gradient_accumulation_steps = 2
    for step in range(4):
        with acc.accumulate(model):
            acc.backward(model(torch.ones(1, 1)).sum())
            optimizer.step()
            moving.step()
            optimizer.zero_grad()
        assert moving.last_epoch == (step + 1) // 2 * acc.num_processes
    acc.sync_gradients = True
    following.step(1.0)
    assert following.last_epoch == 1
    acc.gradient_accumulation_steps = 1
    acc.free_memory()


def check_no_sync(acc: Accelerator) -> None:
    """While accumulating each rank keeps its own gradients; two models in one block count as one micro-batch."""
    first, second = acc.prepare(nn.Linear(1, 1), nn.Linear(1, 1))
    acc.gradient_accumulation_steps, acc.step = 2, 0
    for micro in range(2):
        with acc.accumulate(first, second):
            for model in (first, second):
                acc.backward(model(torch.full((1, 1), float(acc.process_index + 1))).sum())
        for model in (first, second):
            everyone = acc.gather(next(model.parameters()).grad)
            assert (len(everyone.unique()) == 1) == (micro == 1)
    acc.gradient_accumulation_steps = 1
    acc.free_memory()


def check_wrapping(acc: Accelerator) -> None:
    """Only models with something to train are wrapped; preparing twice changes nothing; unwrapping gives the very object back."""
    model, frozen = nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False)
    wrapped, same = acc.prepare(model, frozen)
    assert type(wrapped).__name__ == "DistributedDataParallel"
    assert same is frozen
    assert acc.prepare(model) is wrapped
    assert acc.prepare(wrapped) is wrapped
    assert acc.unwrap_model(wrapped) is model
    assert acc.unwrap_model(frozen) is frozen
    assert acc.prepare_model(nn.Linear(1, 1), evaluation_mode=True).__class__ is nn.Linear
    acc.free_memory()


def check_communication_hooks(acc: Accelerator) -> None:
    """Gradients that travel in half precision or compressed are the same on every rank, and near what they are without."""
    size = acc.num_processes
    for hook, wrapper in (("no", "no"), ("fp16", "no"), ("power_sgd", "no"), ("power_sgd", "fp16")):
        options = {"matrix_approximation_rank": 1, "start_powerSGD_iter": 2} if hook == "power_sgd" else {}
        handler = DistributedDataParallelKwargs(comm_hook=hook, comm_wrapper=wrapper, comm_state_option=options)
        other = Accelerator(kwargs_handlers=[handler])
        model = other.prepare(nn.Linear(8, 8))
        for _ in range(4):
            model.zero_grad()
            other.backward(model(torch.full((1, 8), float(acc.process_index + 1))).sum())
        everyone = acc.gather(model.module.weight.grad[None])
        torch.testing.assert_close(everyone, torch.full((size, 8, 8), (size + 1) / 2), rtol=1e-3, atol=1e-3)
        assert all(torch.equal(everyone[0], each) for each in everyone), (hook, wrapper)


def check_uneven_inputs_are_joined(acc: Accelerator) -> None:
    """With join_uneven_inputs ranks may have different numbers of batches, and loaders are even again afterwards."""
    model, loader = acc.prepare(nn.Linear(1, 1), DataLoader(torch.ones(2 * acc.num_processes + 1, 1), batch_size=1))
    with acc.join_uneven_inputs([model], even_batches=False):
        steps = 0
        for x in loader:
            acc.backward(model(x).sum())
            steps += 1
    assert steps == (3 if acc.process_index == 0 else 2)
    acc.wait_for_everyone()
    assert len(list(loader)) == 3
    acc.free_memory()


def check_who_does_what(acc: Accelerator) -> None:
    """Decorators and blocks act on the rank they name; parts of inputs add up to the whole."""
    me, size = acc.process_index, acc.num_processes
    assert acc.on_main_process(lambda: me)() == (0 if me == 0 else None)
    assert acc.on_last_process(lambda: me)() == (size - 1 if me == size - 1 else None)
    assert acc.on_process(process_index=1)(lambda: me)() == (1 if me == 1 else None)
    with acc.main_process_first():
        pass
    with acc.split_between_processes(list(range(5))) as part:
        assert acc.gather_object(part) == [0, 1, 2, 3, 4]
    with acc.split_between_processes({"a": ("only",), "b": torch.ones(1)}) as parts:
        assert parts["a"] == (("only",) if me == 0 else ())
        assert parts["b"].shape == (int(me == 0),)
    with acc.split_between_processes((1, 2, 3), apply_padding=True) as padded:
        assert isinstance(padded, tuple)
        assert len(acc.gather_object(padded)) == size * len(padded)


def check_contradictions(acc: Accelerator) -> None:
    """A second Accelerator agrees with the first or is refused; single is no strategy for several ranks."""
    assert Accelerator().gradient_state is acc.gradient_state
    expect(SettingError, lambda: Accelerator(mixed_precision="bf16"))
    expect(UnsupportedError, lambda: Accelerator(strategy="single"))
    expect(SettingError, lambda: Accelerator(mixed_precision="fp16"))
    assert GradientState().num_steps == 1


if __name__ == "__main__":
    run_checks(globals(), sys.argv[1])
