"""Small runs to be saved and loaded, and processes that die in the middle of it."""

import os
import signal
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from accelkit import Accelerator

Make = Callable[[nn.Module], torch.optim.Optimizer]


def two_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Weights and biases, with different rates."""
    named = list(model.named_parameters())
    return [
        {"params": [p for name, p in named if name.endswith("weight")], "lr": 0.05},
        {"params": [p for name, p in named if not name.endswith("weight")], "lr": 0.02},
    ]


OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.05),
    "sgd-momentum": lambda model: torch.optim.SGD(two_groups(model), momentum=0.9, nesterov=True),
    "adam": lambda model: torch.optim.Adam(two_groups(model), amsgrad=True),
    "adamw": lambda model: torch.optim.AdamW(two_groups(model), weight_decay=0.1),
    "adamw-fused": lambda model: torch.optim.AdamW(model.parameters(), lr=0.05, fused=True),
    "rmsprop": lambda model: torch.optim.RMSprop(model.parameters(), centered=True, momentum=0.5),
    "adagrad": lambda model: torch.optim.Adagrad(model.parameters()),
    "adafactor": lambda model: torch.optim.Adafactor(model.parameters()),
    "lbfgs": lambda model: torch.optim.LBFGS(model.parameters(), max_iter=2, history_size=3),
}


class Tied(nn.Module):
    """An embedding whose weight is the head's too, dropout that draws numbers, and buffers of other types."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.embed = nn.Linear(width, width, bias=False)
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(width, width)
        self.head.weight = self.embed.weight
        self.register_buffer("flags", torch.tensor([True, False]))
        self.register_buffer("nothing", torch.zeros(0, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Twice through the same weight."""
        out: torch.Tensor = self.head(self.drop(torch.tanh(self.norm(self.embed(x)))))
        return out


@dataclass
class Run:
    """One process's training, step by step."""

    accelerator: Accelerator
    model: nn.Module
    optimizer: Any
    schedule: Any

    def step(self, count: int = 1) -> list[float]:
        """Train on random numbers; the losses."""
        losses = []
        for _ in range(count):
            x = torch.rand(5, 6)

            def closure(x: torch.Tensor = x) -> torch.Tensor:
                self.optimizer.zero_grad()
                loss = self.model(x).square().mean()
                self.accelerator.backward(loss)
                return loss

            losses.append(float(self.optimizer.step(closure).detach()))
            self.schedule.step()
        return losses


def make_run(optimizer: str = "adamw", accelerator: Accelerator | None = None, seed: int = 3, **settings: Any) -> Run:
    """A run at its beginning."""
    torch.manual_seed(seed)
    accelerator = accelerator or Accelerator(**settings)
    model = Tied()
    made = OPTIMIZERS[optimizer](model)
    schedule = torch.optim.lr_scheduler.LambdaLR(made, lambda step: 0.9**step)
    return Run(accelerator, *accelerator.prepare(model, made, schedule))


def state_of(run: Run) -> dict[str, torch.Tensor]:
    """Copies of all tensors of a run's model and optimizer."""
    found = {f"model {name}": value.clone() for name, value in run.model.state_dict().items()}
    for index, values in run.optimizer.state_dict()["state"].items():
        found |= {f"{name} {index}": v.clone() for name, v in values.items() if isinstance(v, torch.Tensor)}
    return found


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether two states are equal bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


FILE_EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.scandir", "os.listdir", "shutil.rmtree"}


def die_at(event: int, work: Callable[[], None]) -> bool:
    """Do the work in a child process that is killed just before its `event`-th step on files; whether it was."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of torch's that the child does not use
        child = os.fork()
    if child == 0:
        _die(event, work)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def _die(event: int, work: Callable[[], None]) -> None:
    left = event

    def count(name: str, _: Any) -> None:
        nonlocal left
        if name in FILE_EVENTS:
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

    code = 1
    try:
        sys.addaudithook(count)
        work()
        code = 0
    finally:
        os._exit(code)


def flip(path: Path, position: int) -> None:
    """Change one byte of a file."""
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
