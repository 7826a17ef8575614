"""A training script as users write them, that saves often and goes on from its last checkpoint.

python -m tests.distributed.resume_script FOLDER --steps N [--save-every K] [--asynchronous] [--log FILE]

Each step appends `STEP LOSS SAMPLES` to the log: the mean loss of all ranks, bit for bit, and the samples of all ranks.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accelkit import Accelerator, ProjectConfiguration, set_seed

SAMPLES = 44
WIDTH = 64
BESIDE: dict[str, Callable[[int], bool]] = {
    "no": lambda _: False,
    "yes": lambda _: True,
    "mixed": lambda step: step % 2 == 0,
}


class Progress:
    """How many steps have been made."""

    def __init__(self) -> None:
        self.step = 0

    def state_dict(self) -> dict[str, int]:
        """To be saved."""
        return dict(self.__dict__)

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Take it back."""
        self.__dict__.update(state)


def arguments() -> argparse.Namespace:
    """What the script is told."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--asynchronous", choices=tuple(BESIDE), default="no")
    parser.add_argument("--log", required=True)
    return parser.parse_args()


def build() -> tuple[nn.Module, Any, Any, Any]:
    """Model, optimizer, schedule, data: the same on every rank."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, WIDTH), nn.Dropout(0.25), nn.ReLU(), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5000)
    inputs = torch.rand(SAMPLES, 8)
    data = TensorDataset(torch.arange(SAMPLES), inputs, inputs.sum(1, keepdim=True).sin())
    return model, optimizer, schedule, DataLoader(data, batch_size=2, shuffle=True)


def main() -> None:
    """Train."""
    args = arguments()
    torch.set_num_threads(1)
    config = ProjectConfiguration(args.folder, automatic_checkpoint_naming=True, total_limit=2)
    acc = Accelerator(project_config=config)
    model, optimizer, schedule, loader = acc.prepare(*build())
    progress = Progress()
    acc.register_for_checkpointing(progress)
    set_seed(5, device_specific=True)
    if any(Path(args.folder).glob("checkpoints/checkpoint_*")):
        acc.load_state()
    while progress.step < args.steps:
        for batch in loader:
            step(acc, model, optimizer, schedule, batch, progress, args.log)
            if args.save_every and progress.step % args.save_every == 0:
                acc.save_state(asynchronous=BESIDE[args.asynchronous](progress.step))
            if progress.step == args.steps:
                break


def step(acc: Accelerator, model: Any, optimizer: Any, schedule: Any, batch: Any, progress: Progress, log: str) -> None:
    """One step, and its line in the log."""
    number, inputs, targets = batch
    loss = nn.functional.mse_loss(model(inputs), targets)
    acc.backward(loss)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    mean, samples = acc.reduce(loss.detach(), "mean"), acc.gather_for_metrics(number)
    progress.step += 1
    if acc.is_main_process:
        with Path(log).open("a") as file:
            file.write(f"{progress.step} {float(mean).hex()} {','.join(map(str, samples.tolist()))}\n")


if __name__ == "__main__":
    main()
