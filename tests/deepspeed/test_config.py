"""DeepSpeed's config, stand-ins for what it describes, several models; and the launch with flags alone."""

from pathlib import Path

import pytest

from tests.deepspeed import config_checks
from tests.support.kit import kit
from tests.support.worlds import Worlds, checks_of

SCRIPT = """
import torch
from accelkit import Accelerator

acc = Accelerator()
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
model, optimizer = acc.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.1))
for _ in range(3):
    loss = model(torch.ones(2, 4)).square().mean()
    acc.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
plugin = acc.deepspeed_plugin
acc.print(acc.strategy, plugin.zero_stage, plugin.get_value("gradient_clipping"), f"{loss.item():.6f}")
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("check", checks_of(config_checks))
def test_config(worlds: Worlds, size: int, check: str) -> None:
    """The check, whose docstring says what must hold, holds on every rank."""
    worlds.check(config_checks, size, check)


@pytest.mark.timeout(120)
def test_launched_by_flags(tmp_path: Path) -> None:
    """`kit run --strategy deepspeed`: stage and clipping as flags, the same losses on one and two ranks; options of others are refused."""
    (tmp_path / "train.py").write_text(SCRIPT)
    flags = ("--strategy", "deepspeed", "--deepspeed-zero-stage", "3", "--deepspeed-gradient-clipping", "0.5")
    ended = [
        kit("run", "--on", "local", "--procs-per-node", ranks, *flags, "train.py", cwd=tmp_path) for ranks in ("1", "2")
    ]
    refused = kit("run", "--on", "local", *flags, "--fsdp-min-num-params", "5", "train.py", cwd=tmp_path)

    assert [one.code for one in ended] == [0, 0], ended[0].err + ended[1].err
    assert ended[0].out.splitlines()[-1].startswith("[node0 rank0] deepspeed 3 0.5 "), ended[0].out
    assert ended[0].out.splitlines()[-1] == ended[1].out.splitlines()[-1]
    assert refused.code == 2
