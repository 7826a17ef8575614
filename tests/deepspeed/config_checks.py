"""DeepSpeed's config and the stand-ins for what it describes, on every rank of one world.

python -m tests.deepspeed.config_checks FOLDER
"""

import base64
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from accelkit import Accelerator
from accelkit.runtime.errors import SettingError, UnsupportedError
from accelkit.runtime.strategies.deepspeed_plugin import DeepSpeedPlugin, DummyOptim, DummyScheduler
from tests.support.checks import run_checks
from tests.support.strategies import Case, Net, batch_of, build, compare, float32_bound, reference, train

ADAMW = {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto", "torch_adam": True}}


def accelerator(plugin: DeepSpeedPlugin, **more: Any) -> Accelerator:
    """A new Accelerator of this process that trains by that plug-in."""
    return Case("deepspeed", lambda _: {"deepspeed_plugin": plugin}).accelerator(1, **more)


def config(stage: int = 2, **more: Any) -> dict[str, Any]:
    """DeepSpeed's config with every number left open."""
    return {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": stage}, **more}


def plain_losses(steps: int, lr: float, rates: list[float] | None = None) -> list[float]:
    """The loop of one process with AdamW, whose rate is multiplied by these, step by step."""
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.1)
    losses = []
    for step in range(steps):
        if rates is not None:
            optimizer.param_groups[0]["lr"] = lr * rates[step]
        x, y = batch_of(step)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def trained(acc: Accelerator, model: Any, optimizer: Any, schedule: Any, steps: int) -> tuple[list[float], list[float]]:
    """The loop of a script with a schedule: its losses, and the rate of each step."""
    losses, rates = [], []
    for step in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        losses += train(acc, model, optimizer, range(step, step + 1), clip=1e9)[0]
        schedule.step()
    return losses, rates


def check_a_schedule_that_the_script_makes(acc: Accelerator) -> None:
    """`lr_scheduler_callable` gets the optimizer that steps; its schedule moves once a step on any number of ranks."""
    factors = [1 / (1 + step) for step in range(4)]
    for stage in (1, 2, 3):
        acc = accelerator(DeepSpeedPlugin(zero_stage=stage))
        model = build()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.1)
        schedule = DummyScheduler(
            optimizer,
            lr_scheduler_callable=lambda one: torch.optim.lr_scheduler.LambdaLR(one, lambda step: 1 / (1 + step)),
        )
        model, optimizer, schedule = acc.prepare(model, optimizer, schedule)
        losses, rates = trained(acc, model, optimizer, schedule, 4)
        assert rates == pytest.approx([0.02 * one for one in factors])
        assert losses == pytest.approx(plain_losses(4, 0.02, factors), abs=float32_bound()["atol"])
        assert schedule.state_dict()["last_epoch"] == 4


def check_a_schedule_of_the_config(acc: Accelerator) -> None:
    """The stand-in's lengths fill "auto", in steps of this run; the schedule moves with the optimizer, and its state is kept."""
    described = {"type": "WarmupDecayLR", "params": {"warmup_type": "linear", "total_num_steps": "auto"}}
    described["params"] |= dict.fromkeys(("warmup_min_lr", "warmup_max_lr", "warmup_num_steps"), "auto")
    acc = accelerator(DeepSpeedPlugin(hf_ds_config=config(scheduler=described)))
    size = acc.num_processes
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.1)
    schedule = DummyScheduler(optimizer, total_num_steps=8 * size, warmup_num_steps=2 * size)
    model, optimizer, schedule = acc.prepare(model, optimizer, schedule)
    _, rates = trained(acc, model, optimizer, schedule, 6)
    assert acc.deepspeed_plugin.resolved["scheduler.params.total_num_steps"] == 8
    assert acc.deepspeed_plugin.resolved["scheduler.params.warmup_num_steps"] == 2
    # DeepSpeed's schedules begin with the first step: the rate before it is the least.
    assert rates == pytest.approx([0.0, 0.0, 0.01, 0.02, 0.02 * 5 / 6, 0.02 * 4 / 6]), rates
    kept = schedule.state_dict()
    schedule.step()
    schedule.load_state_dict(kept)
    assert schedule.state_dict() == kept


def check_a_schedule_that_is_none_or_two(acc: Accelerator) -> None:
    """A stand-in for nothing, and one for two schedules, are refused when they are prepared."""
    described = {"type": "WarmupLR", "params": {"warmup_num_steps": 3}}
    for more, make, said in (({}, None, "stands for no schedule"), ({"scheduler": described}, lambda one: one, "too")):
        acc = accelerator(DeepSpeedPlugin(hf_ds_config=config(**more)))
        model = build()
        optimizer = torch.optim.AdamW(model.parameters())
        with pytest.raises(SettingError, match=said):
            acc.prepare(model, optimizer, DummyScheduler(optimizer, lr_scheduler_callable=make))
    with pytest.raises(UnsupportedError, match="under strategy 'deepspeed' only"):
        DummyScheduler(optimizer).step()


def check_an_optimizer_of_the_config(acc: Accelerator) -> None:
    """DummyOptim stands for the config's optimizer and fills its "auto"; an ordinary schedule of it works, too."""
    for stage in (1, 3):
        acc = accelerator(DeepSpeedPlugin(hf_ds_config=config(stage, optimizer=ADAMW)))
        model = build()
        optimizer = DummyOptim(model.parameters(), lr=0.02, weight_decay=0.1)
        factors = [0.5**step for step in range(3)]
        ranks = acc.num_processes
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step, ranks=ranks: 0.5 ** (step / ranks))
        model, optimizer, schedule = acc.prepare(model, optimizer, schedule)
        losses, rates = trained(acc, model, optimizer, schedule, 3)
        assert rates == pytest.approx([0.02 * one for one in factors])
        assert losses == pytest.approx(plain_losses(3, 0.02, factors), abs=float32_bound()["atol"])
        assert acc.deepspeed_plugin.resolved["optimizer.params.lr"] == 0.02
        assert acc.deepspeed_plugin.resolved["optimizer.params.weight_decay"] == 0.1


def check_an_optimizer_that_is_none_or_two(acc: Accelerator) -> None:
    """An optimizer in the config and in the script, and a stand-in for none, are refused."""
    for more, kind in (({"optimizer": ADAMW}, torch.optim.AdamW), ({}, DummyOptim)):
        acc = accelerator(DeepSpeedPlugin(hf_ds_config=config(**more)))
        model = build()
        with pytest.raises(SettingError, match="DummyOptim"):
            acc.prepare(model, kind(model.parameters()))


def check_where_a_config_is_read_from(acc: Accelerator) -> None:
    """A file, base64, a dict, and a file that the launch names: the same training. What is not there or no JSON is named."""
    wanted, losses, _ = reference(2, clip=1e9)
    given = config(3, gradient_accumulation_steps="auto", train_batch_size="auto")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ds.json"
        file.write_text(json.dumps(given))
        encoded = base64.b64encode(file.read_bytes()).decode()
        for form in ({"hf_ds_config": str(file)}, {"hf_ds_config": encoded}, {"config_file": str(file)}):
            acc = accelerator(DeepSpeedPlugin(**form))
            model = build()
            optimizer = torch.optim.AdamW(
                [{"params": (w := list(model.parameters()))[:2]}, {"params": w[2:], "lr": 0.01}], lr=0.02
            )
            model, optimizer = acc.prepare(model, optimizer)
            found, _ = train(acc, model, optimizer, range(2), clip=1e9)
            assert found == pytest.approx(losses, abs=float32_bound()["atol"])
            compare(acc, model, wanted, float32_bound())
            assert acc.deepspeed_plugin.is_auto("train_batch_size") is False
            assert acc.deepspeed_plugin.get_value("train_batch_size") == acc.num_processes
        file.write_text("{")
        with pytest.raises(SettingError, match=r"ds\.json: no JSON"):
            _ = DeepSpeedPlugin(hf_ds_config=str(file)).deepspeed_config
    with pytest.raises(SettingError, match="is not there"):
        _ = DeepSpeedPlugin(hf_ds_config="nowhere.json").deepspeed_config


def check_contradictions(acc: Accelerator) -> None:
    """Everything that is said twice and differently is listed in one message, with who says what."""
    given = config(2, gradient_clipping=1.0, train_batch_size=999, bf16={"enabled": True}, what={"lr": "auto"})
    plugin = DeepSpeedPlugin(hf_ds_config=given, zero_stage=3, gradient_clipping=0.5)
    acc = accelerator(plugin, gradient_accumulation_steps=4)
    model = build()
    with pytest.raises(SettingError) as caught:
        acc.prepare(model, torch.optim.AdamW(model.parameters()))
    told = str(caught.value)
    for said in (
        "gradient_clipping is 1.0",
        "zero_optimization.stage is 2 in DeepSpeed's config, and 3 by the plug-in's zero_stage",
        "bf16.enabled is True",
        "train_batch_size is 999",
        'what.lr is "auto", and nothing says what it is',
    ):
        assert said in told, told


def check_several_models(acc: Accelerator) -> None:
    """Two models with an optimizer each, one loss: each is trained as in one process."""
    one, two = build(seed=1), build(seed=2)
    first, second = (torch.optim.AdamW(model.parameters(), lr=0.02) for model in (one, two))
    wanted = []
    for step in range(3):
        x, y = batch_of(step)
        loss = nn.functional.mse_loss(two(one(x)), y)
        loss.backward()
        for optimizer in (first, second):
            optimizer.step()
            optimizer.zero_grad()
        wanted.append(loss.item())
    for stage in (1, 2, 3):
        acc = accelerator(DeepSpeedPlugin(zero_stage=stage))
        mine, other = build(seed=1), build(seed=2)
        mine, other, first, second = acc.prepare(
            mine, other, torch.optim.AdamW(mine.parameters(), lr=0.02), torch.optim.AdamW(other.parameters(), lr=0.02)
        )
        found = []
        for step in range(3):
            x, y = (whole[acc.process_index :: acc.num_processes] for whole in batch_of(step))
            loss = nn.functional.mse_loss(other(mine(x)), y)
            acc.backward(loss)
            for optimizer in (first, second):
                optimizer.step()
                optimizer.zero_grad()
            found.append(float(acc.reduce(loss.detach(), "mean")))
        assert found == pytest.approx(wanted, abs=float32_bound()["atol"]), stage
        compare(acc, mine, one, float32_bound())
        compare(acc, other, two, float32_bound())


def check_classes_that_are_gathered_whole(acc: Accelerator) -> None:
    """transformer_moe_cls_names: modules of these classes are leaves for stage 3, training is the same; an unknown class is named."""
    wanted, losses, _ = reference(3, clip=1e9)
    acc = accelerator(DeepSpeedPlugin(zero_stage=3, transformer_moe_cls_names="Block"))
    model = build()
    optimizer = torch.optim.AdamW(
        [{"params": (w := list(model.parameters()))[:2]}, {"params": w[2:], "lr": 0.01}], lr=0.02
    )
    prepared, optimizer = acc.prepare(model, optimizer)
    assert train(acc, prepared, optimizer, range(3), clip=1e9)[0] == pytest.approx(losses, abs=float32_bound()["atol"])
    compare(acc, prepared, wanted, float32_bound())
    from deepspeed.utils import get_z3_leaf_modules

    assert get_z3_leaf_modules(model) == list(model.blocks)
    acc = accelerator(DeepSpeedPlugin(zero_stage=3, transformer_moe_cls_names="Expert"))
    other = build()
    with pytest.raises(SettingError, match="Expert is no class of a module of the model"):
        acc.prepare(other, torch.optim.AdamW(other.parameters()))


def check_models_divided_while_they_are_built(acc: Accelerator) -> None:
    """In the block no parameter is whole; training is that of the model that one process builds with the same seed."""
    plugin = DeepSpeedPlugin(zero_stage=3)
    with pytest.raises(SettingError, match="once the Accelerator is there"):
        plugin.zero3_init_context_manager(enable=True)
    with pytest.warns(UserWarning, match="no effect below stage 3"):
        acc = accelerator(DeepSpeedPlugin(zero_stage=2, zero3_init_flag=True))
    acc = accelerator(plugin)
    wanted, losses, _ = reference(3, clip=1e9, dtype=torch.float32)
    with plugin.zero3_init_context_manager(enable=True):
        torch.manual_seed(3 + acc.process_index)  # rank 0's values are everybody's
        model = Net()
        with plugin.zero3_init_context_manager(enable=False):
            assert sum(one.numel() for one in nn.Linear(2, 3).parameters()) == 9
    assert sum(one.numel() for one in model.parameters()) == 0
    weights = list(model.parameters())
    assert all(one.ds_numel == other.numel() for one, other in zip(weights, wanted.parameters(), strict=True))
    prepared, optimizer = acc.prepare(
        model, torch.optim.AdamW([{"params": weights[:2]}, {"params": weights[2:], "lr": 0.01}], lr=0.02)
    )
    prepared.register_forward_pre_hook(lambda _, given: tuple(one.float() for one in given))
    found = train(acc, prepared, optimizer, range(3), clip=1e9)[0]
    assert found == pytest.approx(losses, abs=float32_bound()["atol"])
    compare(acc, prepared, wanted, float32_bound())


def check_transformers_divide_what_they_build(acc: Accelerator) -> None:
    """zero3_init_flag: `from_pretrained` reads a checkpoint into parts, and the whole state is the file's; without it models are whole."""
    import transformers

    shape = {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32, "num_attention_heads": 2}
    folder = Path(acc.gather_object([tempfile.mkdtemp()])[0])
    torch.manual_seed(7)
    wanted = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=64, **shape))
    if acc.is_main_process:
        wanted.save_pretrained(folder)
    acc.wait_for_everyone()
    for flag in (True, False):
        acc = accelerator(DeepSpeedPlugin(hf_ds_config=config(3), zero3_init_flag=flag))
        assert acc.deepspeed_plugin is not None
        assert acc.deepspeed_plugin.is_zero3_init_enabled() is flag
        with acc.deepspeed_plugin.zero3_init_context_manager(enable=not flag):
            other = transformers.LlamaForCausalLM.from_pretrained(folder)
        model = transformers.LlamaForCausalLM.from_pretrained(folder)
        assert [any(weight.numel() for weight in one.parameters()) for one in (model, other)] == [not flag, flag]
        model, _ = acc.prepare(model, torch.optim.AdamW(model.parameters()))
        state = acc.get_state_dict(model)
        assert not acc.is_main_process or all(
            torch.equal(state[name], one) for name, one in wanted.state_dict().items()
        )


if __name__ == "__main__":
    run_checks(dict(globals()), sys.argv[1])
