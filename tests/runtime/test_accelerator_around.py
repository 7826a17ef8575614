"""What is around the training loop: seeds, metrics, outputs, and what a step costs."""

import inspect
import json
import pickle
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accelkit import (
    Accelerator,
    AcceleratorState,
    GradientState,
    SettingError,
    set_seed,
)


@pytest.fixture(autouse=True)
def fresh_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No state of another test, no world of the caller's; determinism is switched off again."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    threads = torch.get_num_threads()
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


def make_parts() -> tuple[nn.Module, torch.optim.Optimizer, DataLoader[Any], Any]:
    """A small model and all that trains it, always the same."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    data = torch.linspace(-1, 1, 60).reshape(20, 3)
    loader = DataLoader(TensorDataset(data, data.sum(1, keepdim=True)), batch_size=4)
    return model, optimizer, loader, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)


def weights(model: nn.Module) -> torch.Tensor:
    """All parameters in a row."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_seeds_reach_every_generator() -> None:
    """Python, numpy and torch draw the same again, for seeds of any size."""
    import numpy as np

    def draw() -> list[float]:
        return [random.random(), float(np.random.rand()), torch.rand(()).item()]

    for seed in (0, 7, 2**40):
        set_seed(seed)
        first = draw()
        set_seed(seed)
        assert draw() == first


def test_a_deterministic_run_starts_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """KIT_DETERMINISTIC seeds with 0, chooses deterministic algorithms, and one thread where none were chosen."""
    monkeypatch.setenv("KIT_DETERMINISTIC", "1")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    Accelerator()
    first = torch.rand(3)
    torch.manual_seed(0)

    assert torch.equal(first, torch.rand(3))
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.get_num_threads() == 1
    torch.manual_seed(5)
    Accelerator()
    assert torch.initial_seed() == 5, "only the first Accelerator of a process seeds"


def test_metrics_are_lines_that_can_be_compared_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call appends a line with values and their exact bits; what is not finite is null beside its name in hex."""
    file = tmp_path / "metrics.jsonl"
    monkeypatch.setenv("KIT_METRICS_FILE", str(file))
    acc = Accelerator()
    acc.log({"loss": torch.tensor(0.1), "n": 3, "bad": float("nan"), "note": "x"}, step=2)
    acc.log({"loss": 0.5})
    lines = [json.loads(line) for line in file.read_text().splitlines()]

    assert lines[0]["values"] == {"loss": torch.tensor(0.1).item(), "n": 3, "bad": None, "note": "x"}
    assert lines[0]["hex"] == {"loss": torch.tensor(0.1).item().hex(), "n": (3.0).hex(), "bad": "nan"}
    assert lines[0]["step"] == 2
    assert lines[1] == {"step": None, "values": {"loss": 0.5}, "hex": {"loss": (0.5).hex()}}
    with pytest.raises(SettingError, match="log: x is of type list"):
        acc.log({"x": [1]})


def test_logging_without_a_file_does_nothing() -> None:
    """The same script runs where nobody asked for metrics."""
    Accelerator().log({"loss": 1.0}, step=1)


def test_outputs_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The output folder is made; a file is written whole, in either format, and nothing else is left beside it."""
    monkeypatch.setenv("KIT_OUTPUT_DIR", str(tmp_path / "deep" / "out"))
    acc = Accelerator()
    acc.save({"a": torch.ones(2)}, acc.output_dir / "plain.pt")
    acc.save({"a": torch.ones(2, 2).t()}, acc.output_dir / "safe.safetensors", safe_serialization=True)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        acc.save(lambda: None, acc.output_dir / "never.pt")

    assert sorted(path.name for path in acc.output_dir.iterdir()) == ["plain.pt", "safe.safetensors"]
    assert torch.load(acc.output_dir / "plain.pt")["a"].tolist() == [1.0, 1.0]
    assert load_file(acc.output_dir / "safe.safetensors")["a"].shape == (2, 2)
    monkeypatch.delenv("KIT_OUTPUT_DIR")
    monkeypatch.chdir(tmp_path)
    assert acc.output_dir == Path("outputs")
    assert (tmp_path / "outputs").is_dir()


def test_a_step_asks_the_environment_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is decided at the start: no look into the environment, no search for modules, no signature during steps."""
    import importlib.util
    import os

    acc = Accelerator(gradient_accumulation_steps=2)
    model, optimizer, loader, schedule = acc.prepare(*make_parts())
    asked: list[str] = []
    real_get, real_find = os.environ.__class__.__getitem__, importlib.util.find_spec
    monkeypatch.setattr(
        os.environ.__class__, "__getitem__", lambda env, name: (asked.append(name), real_get(env, name))[1]
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda *args: (asked.append(str(args)), real_find(*args))[1])
    monkeypatch.setattr(inspect, "signature", lambda *_, **__: asked.append("signature"))
    for x, y in loader:
        with acc.accumulate(model):
            acc.backward(nn.functional.mse_loss(model(x), y))
            acc.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            acc.gather_for_metrics(x)

    assert asked == []


def test_nothing_warns() -> None:
    """A whole loop raises no warning from torch about orders of calls."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        acc = Accelerator(gradient_accumulation_steps=2)
        model, optimizer, loader, schedule = acc.prepare(*make_parts())
        for x, _ in loader:
            with acc.accumulate(model):
                acc.backward(model(x).sum())
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
