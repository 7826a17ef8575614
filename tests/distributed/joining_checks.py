"""What must hold where ranks run out of batches at different times. Run once per rank.

python -m tests.distributed.joining_checks FOLDER
"""

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from accelkit import Accelerator, DataLoaderConfiguration
from tests.support.checks import run_checks


def uneven(acc: Accelerator, *objects: Any, **config: Any) -> Any:
    """The objects, prepared without making ranks even."""
    acc.dataloader_config = DataLoaderConfiguration(even_batches=False, **config)
    made = acc.prepare(*objects)
    acc.dataloader_config = DataLoaderConfiguration()
    return made


def line() -> nn.Linear:
    """A model with the same weights everywhere."""
    model = nn.Linear(1, 1)
    nn.init.constant_(model.weight, 0.5)
    nn.init.constant_(model.bias, -0.25)
    return model


def check_accumulating_while_joining(acc: Accelerator) -> None:
    """The end of any rank completes the window of all ranks: no gradient is lost, and all end with one process' parameters."""
    size = acc.num_processes
    batches = (torch.arange(2.0 * (5 * size + 1)) / 10).unsqueeze(1).split(2)
    for dispatch in (False, True):
        acc.gradient_accumulation_steps, acc.step = 2, 0
        model, plain = line(), line()
        model, optimizer, loader = uneven(
            acc,
            model,
            torch.optim.SGD(model.parameters(), 0.01),
            DataLoader(torch.cat(batches), 2),
            dispatch_batches=dispatch,
        )
        with acc.join_uneven_inputs([model]):
            for batch in loader:
                with acc.accumulate(model):
                    acc.backward(model(batch).square().mean())
                    optimizer.step()
                    optimizer.zero_grad()

        reference = torch.optim.SGD(plain.parameters(), 0.01)
        for window in (range(2), range(2, 4), range(4, 5), range(5, 6)):
            for batch in batches[window.start * size : window.stop * size]:
                (plain(batch).square().mean() / 2 / size).backward()
            reference.step()
            reference.zero_grad()
        for mine, wanted in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(mine, wanted)
        acc.gradient_accumulation_steps = 1
        acc.free_memory()


def check_the_end_of_a_block_is_its_end(acc: Accelerator) -> None:
    """After joining, a rank may run the model by itself; nobody else waits for it or is waited for."""
    model, loader = uneven(acc, line(), DataLoader(torch.ones(acc.num_processes + 1, 1), 1))
    with acc.join_uneven_inputs([model]):
        for batch in loader:
            acc.backward(model(batch).sum())
    if acc.is_main_process:
        with torch.no_grad():
            model(torch.ones(1, 1))
    assert acc.gather(torch.ones(1)).tolist() == [1.0] * acc.num_processes
    acc.free_memory()


class Divided(IterableDataset[Any]):
    """Numbers, divided among workers."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[torch.Tensor]:
        info: Any = get_worker_info()
        return (torch.tensor([float(n)]) for n in range(info.id, self.length, info.num_workers))


def check_joining_streams_of_several_workers(acc: Accelerator) -> None:
    """Where every worker's stream ends with a round that not all ranks have part in, training goes through with every sample."""
    length = 2 * (4 * acc.num_processes + 1)
    for dispatch in (None, False):
        model, loader = uneven(acc, line(), DataLoader(Divided(length), 4, num_workers=2), dispatch_batches=dispatch)
        seen = []
        with acc.join_uneven_inputs([model]):
            for batch in loader:
                acc.backward(model(batch).sum())
                seen += batch.flatten().tolist()
        assert sorted(acc.gather_object(seen)) == list(range(length))
        acc.free_memory()


if __name__ == "__main__":
    run_checks(globals(), sys.argv[1])
