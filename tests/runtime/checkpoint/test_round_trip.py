"""What is saved comes back: bit for bit, in place, and the run goes on as if it had never stopped."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader

from accelkit import Accelerator, CheckpointError, SettingError
from accelkit.runtime.checkpoint import names
from tests.support.checkpoints import OPTIMIZERS, Tied, make_run, same, state_of


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_resumed_run_is_the_run_that_never_stopped(tmp_path: Path, optimizer: str, safe: bool) -> None:
    """Losses after a resume, into a run of its own or over the same one, are those without it, for every optimizer."""
    run = make_run(optimizer)
    run.step(3)
    run.accelerator.save_state(tmp_path / "a", safe_serialization=safe)
    wanted = run.step(3)
    end = state_of(run)

    other = make_run(optimizer, run.accelerator.__class__(), seed=8)
    other.accelerator.load_state(tmp_path / "a")
    assert other.step(3) == wanted
    assert same(state_of(other), end)
    run.accelerator.load_state(tmp_path / "a")
    assert run.step(3) == wanted


def test_everything_is_read_into_the_live_tensors(tmp_path: Path) -> None:
    """Parameters, buffers and moments stay the objects they were."""
    run = make_run()
    run.step(2)
    run.accelerator.save_state(tmp_path / "a")
    before = state_of(run)
    parameters = list(run.model.parameters())
    moments = [run.optimizer.state[p]["exp_avg"] for p in parameters]
    places = [tensor.data_ptr() for tensor in [*run.model.state_dict().values(), *moments]]
    run.step(2)

    run.accelerator.load_state(tmp_path / "a")

    assert same(state_of(run), before)
    assert [run.optimizer.state[p]["exp_avg"] for p in parameters] == moments or all(
        run.optimizer.state[p]["exp_avg"] is m for p, m in zip(parameters, moments, strict=True)
    )
    assert [tensor.data_ptr() for tensor in [*run.model.state_dict().values(), *moments]] == places


def test_tied_weights_are_stored_once(tmp_path: Path) -> None:
    """The file holds one of two tied names, says so, and other programs read it; untying refuses, tying stays."""
    run = make_run()
    run.accelerator.save_state(tmp_path / "a")
    stored = load_file(tmp_path / "a" / "model.safetensors")
    assert "embed.weight" in stored
    assert "head.weight" not in stored

    other = make_run(accelerator=Accelerator(), seed=9)
    other.accelerator.load_state(tmp_path / "a")
    assert other.model.head.weight is other.model.embed.weight
    assert torch.equal(other.model.embed.weight, run.model.embed.weight)

    untied = Tied()
    untied.head.weight = nn.Parameter(torch.zeros(6, 6))
    acc = Accelerator()
    acc.prepare(untied)
    with pytest.warns(UserWarning, match="1 optimizers, 1 schedulers of .* are not loaded: none is prepared"):
        acc.load_state(tmp_path / "a")
    assert torch.equal(untied.head.weight, run.model.embed.weight)
    assert torch.equal(untied.embed.weight, run.model.embed.weight)


def test_two_weights_do_not_become_one(tmp_path: Path) -> None:
    """A checkpoint in which two tensors differ is refused by a model in which they are tied."""
    acc = Accelerator()
    untied = Tied()
    untied.head.weight = nn.Parameter(torch.zeros(6, 6))
    acc.prepare(untied)
    acc.save_state(tmp_path / "a")
    other = Accelerator()
    other.prepare(Tied())

    with pytest.raises(CheckpointError, match=r"head\.weight and embed\.weight are two tensors"):
        other.load_state(tmp_path / "a")


class Holder(nn.Module):
    """Buffers of every type and form."""

    def __init__(self, fill: int) -> None:
        super().__init__()
        for dtype in [
            torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
            torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.uint16,
        ]:  # fmt: skip
            name = str(dtype).removeprefix("torch.")
            self.register_buffer(f"{name}_none", torch.full((), fill).to(dtype))
            self.register_buffer(f"{name}_some", torch.full((3, 2), fill).to(dtype))
            self.register_buffer(f"{name}_empty", torch.zeros(0, 4).to(dtype))
        self.register_buffer("turned", torch.full((4, 3), float(fill)).t())
        self.register_buffer("view", torch.full((10,), float(fill))[2:5])
        self.register_buffer("stepped", torch.full((10,), float(fill))[::3])
        self.register_buffer("conjugate", torch.full((2,), fill * (1 + 1j)).conj())
        self.register_buffer("sparse", torch.eye(3).mul(fill).to_sparse())
        self.extra: Any = {"words": ["a", fill]}

    def get_extra_state(self) -> Any:
        """Anything."""
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        """Take it back."""
        self.extra = state


class Grown(nn.Module):
    """Extra state that is a tensor, whose length changes."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.seen = torch.arange(float(length))

    def get_extra_state(self) -> torch.Tensor:
        """The tensor."""
        return self.seen

    def set_extra_state(self, state: torch.Tensor) -> None:
        """Take it back."""
        self.seen = state


@pytest.mark.parametrize("safe", [True, False])
def test_what_modules_take_in_any_form(tmp_path: Path, safe: bool) -> None:
    """Extra state of another length, and layers that were not made yet, are loaded as torch's load_state_dict loads them."""
    acc = Accelerator()
    lazy = nn.LazyLinear(3)
    lazy(torch.ones(1, 2))
    acc.prepare(Grown(5), lazy)
    acc.save_state(tmp_path / "a", safe_serialization=safe)
    other = Accelerator()
    grown, blank = other.prepare(Grown(1), nn.LazyLinear(3))
    other.load_state(tmp_path / "a")

    assert grown.seen.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert torch.equal(blank.weight, lazy.weight)
    assert blank(torch.ones(1, 2)).shape == (1, 3)


@pytest.mark.parametrize("safe", [True, False])
def test_every_type_and_form_comes_back(tmp_path: Path, safe: bool) -> None:
    """Scalars, empty ones, strides, conjugates, sparse tensors, types that safetensors cannot hold, and what is no tensor."""
    acc = Accelerator()
    model = acc.prepare(Holder(1))
    acc.save_state(tmp_path / "a", safe_serialization=safe)
    other = Accelerator()
    blank = other.prepare(Holder(0))
    other.load_state(tmp_path / "a")

    for name, value in model.state_dict().items():
        found = blank.state_dict()[name]
        if isinstance(value, torch.Tensor):
            assert found.dtype == value.dtype
            assert found.shape == value.shape
            assert torch.equal(
                found.to_dense() if found.is_sparse else found, value.to_dense() if value.is_sparse else value
            )
    assert blank.extra == {"words": ["a", 1]}


class Counter:
    """An object of a script's."""

    def __init__(self) -> None:
        self.state: Any = {"n": 0}

    def state_dict(self) -> Any:
        """What it remembers."""
        return self.state

    def load_state_dict(self, state: Any) -> None:
        """Take it back."""
        self.state = state


class Odd:
    """A class that a load would have to make."""


def test_registered_objects(tmp_path: Path) -> None:
    """They come back in order; another number of them is refused, and so are objects without the methods."""
    run = make_run()
    one, two = Counter(), Counter()
    one.state, two.state = {"n": 1, "t": torch.ones(2)}, [3, "x"]
    run.accelerator.register_for_checkpointing(one, two)
    run.accelerator.save_state(tmp_path / "a")
    one.state, two.state = {}, {}
    run.accelerator.load_state(tmp_path / "a")
    assert one.state["n"] == 1
    assert two.state == [3, "x"]
    one.state["t"].zero_()  # memory of its own, not the file's

    run.accelerator.register_for_checkpointing(Counter())
    with pytest.raises(CheckpointError, match="holds 2 registered objects, and 3 are registered: Counter"):
        run.accelerator.load_state(tmp_path / "a")
    with pytest.raises(SettingError, match=r"1 \(int\)"):
        run.accelerator.register_for_checkpointing(Counter(), 3)


def test_no_code_is_run_unless_asked(tmp_path: Path) -> None:
    """A class in a registered object is named at the save and refused at the load, by name, unless weights_only=False."""
    run = make_run()
    item = Counter()
    item.state = {"odd": Odd()}
    run.accelerator.register_for_checkpointing(item)
    with pytest.warns(UserWarning, match="holds objects of .*Odd"):
        run.accelerator.save_state(tmp_path / "a")
    before = state_of(run)
    with pytest.raises(CheckpointError, match=r"custom_checkpoint_0\.pkl: .* object of .*Odd"):
        run.accelerator.load_state(tmp_path / "a")
    assert same(state_of(run), before)
    run.accelerator.load_state(tmp_path / "a", load_kwargs={"weights_only": False})
    assert isinstance(item.state["odd"], Odd)


def test_numpy_numbers_load(tmp_path: Path) -> None:
    """Rates and arrays of numpy's are no code."""
    import numpy as np

    item = Counter()
    item.state = {"rate": np.float64(0.5), "counts": np.arange(3)}
    acc = Accelerator()
    acc.register_for_checkpointing(item)
    acc.save_state(tmp_path / "a")
    item.state = None
    acc.load_state(tmp_path / "a")
    assert item.state["rate"] == 0.5
    assert item.state["counts"].tolist() == [0, 1, 2]


def test_hooks_take_over(tmp_path: Path) -> None:
    """A save hook that empties `weights` saves by itself into what becomes the checkpoint; a load hook likewise; both can be removed."""
    run = make_run()

    def save(models: list[Any], weights: list[Any], output_dir: str) -> None:
        (Path(output_dir) / "mine").mkdir()
        torch.save(weights.pop(), Path(output_dir) / "mine" / "w.pt")

    def load(models: list[Any], input_dir: str) -> None:
        models.pop().load_state_dict(torch.load(Path(input_dir) / "mine" / "w.pt"))

    saving = run.accelerator.register_save_state_pre_hook(save)
    loading = run.accelerator.register_load_state_pre_hook(load)
    run.accelerator.save_state(tmp_path / "a")
    assert not (tmp_path / "a" / names.model(0)).exists()
    before = state_of(run)
    run.step(2)
    run.accelerator.load_state(tmp_path / "a")
    assert same(state_of(run), before)
    (tmp_path / "a" / "mine" / "w.pt").unlink()
    with pytest.raises(CheckpointError, match=r"mine/w\.pt is missing"):
        run.accelerator.load_state(tmp_path / "a")
    saving.remove()
    loading.remove()
    run.accelerator.save_state(tmp_path / "b")
    assert (tmp_path / "b" / names.model(0)).exists()


def test_what_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    """Other names, shapes, types, optimizers, numbers of objects: refused by name, nothing is changed; strict=False takes what fits."""
    run = make_run()
    run.step(2)
    run.accelerator.save_state(tmp_path / "a")

    def refused(message: str, model: nn.Module, optimizer: Any = None) -> None:
        acc = Accelerator()
        optimizer = optimizer or torch.optim.AdamW(model.parameters())
        acc.prepare(model, optimizer)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        with pytest.raises(CheckpointError, match=message):
            acc.load_state(tmp_path / "a")
        assert same(dict(model.state_dict()), before)

    refused(r"embed\.weight is float32 \[6, 6\] in the checkpoint and float32 \[5, 5\] in the model", Tied(5))
    refused(r"embed\.weight is float32 \[6, 6\] in the checkpoint and bfloat16 \[6, 6\]", Tied().bfloat16())
    refused(r"bias is missing from the checkpoint\n.*embed\.weight is not in the model", nn.Linear(6, 6))
    model = Tied()
    refused("4 parameters there|2 groups of parameters in the checkpoint, and 1", model)
    refused("no momentum", model, torch.optim.SGD(_as_groups(model), lr=1.0))
    acc = Accelerator()
    acc.prepare(Tied(), Tied())
    with pytest.raises(CheckpointError, match="holds 1 models, and 2 are prepared"):
        acc.load_state(tmp_path / "a")
    acc = Accelerator()
    alone = acc.prepare(nn.ModuleDict({"embed": nn.Linear(6, 6)}))
    with pytest.warns(UserWarning, match="not loaded: none is prepared"):
        acc.load_state(tmp_path / "a", strict=False)
    assert torch.equal(alone["embed"].weight, run.model.embed.weight)


def _as_groups(model: nn.Module) -> list[dict[str, Any]]:
    from tests.support.checkpoints import two_groups

    return two_groups(model)


def test_the_loss_scaler_and_the_step_come_back(tmp_path: Path) -> None:
    """Where accumulation is in its window, and the scale that fp16 has come to; that gradients are missing is said both times."""
    run = make_run(gradient_accumulation_steps=3)
    run.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    run.accelerator.scaler.scale(torch.ones(()))
    run.accelerator.step = 2
    with pytest.warns(UserWarning, match="after 2 of 3 micro-batches"):
        run.accelerator.save_state(tmp_path / "a")
    run.accelerator.step = 0
    run.accelerator.scaler.update(2.0)
    with pytest.warns(UserWarning, match="after 2 of 3 micro-batches of a window, and does not hold their gradients"):
        run.accelerator.load_state(tmp_path / "a")
    assert run.accelerator.step == 2
    assert run.accelerator.scaler.state_dict()["scale"] == 8.0


def test_arguments_of_a_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong map_location and a folder that is not there are refused in so many words; without a name there is a usual place."""
    run = make_run()
    run.accelerator.save_state(tmp_path / "a")
    with pytest.raises(TypeError, match="map_location='gpu'"):
        run.accelerator.load_state(tmp_path / "a", map_location="gpu")
    with pytest.raises(SettingError, match=r"tried to find .*nowhere") as caught:
        run.accelerator.load_state(tmp_path / "nowhere")
    assert str(tmp_path / "a") in str(caught.value)
    monkeypatch.chdir(tmp_path)
    assert str(run.accelerator.save_state()) == str(tmp_path / "checkpoint")
    run.accelerator.load_state()
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match="is a file"):
        run.accelerator.save_state(tmp_path / "file")
    for verify in ("size", "crc32"):
        run.accelerator.load_state(tmp_path / "a", verify=verify)


@pytest.mark.parametrize("trains", [True, False])
def test_validation_that_stopped_early_is_over_also_outside_of_loops(tmp_path: Path, trains: bool) -> None:
    """Saved between loops that were left, the one that trains goes on; the other begins anew, but goes on where nothing trains."""

    def make() -> tuple[Accelerator, Any, Any]:
        accelerator = Accelerator(cpu=True)
        return accelerator, *accelerator.prepare(*(DataLoader(range(8), batch_size=2) for _ in range(2)))

    accelerator, training, validation = make()
    for step, _ in enumerate(training):
        if trains:
            accelerator.backward(torch.ones(1, requires_grad=True).sum())
        if step == 2:
            break
    next(iter(validation))
    accelerator.save_state(tmp_path / "a")
    accelerator, training, validation = make()
    accelerator.load_state(tmp_path / "a")

    assert [batch.tolist() for batch in training] == [[6, 7]]
    left = [batch.tolist() for batch in validation]
    assert left == ([[0, 1], [2, 3], [4, 5], [6, 7]] if trains else [[2, 3], [4, 5], [6, 7]])
