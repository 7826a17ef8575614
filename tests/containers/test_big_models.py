"""A model larger than its container's memory."""

import re
import shutil
from pathlib import Path

import torch

from tests.support.bigmodels import make
from tests.support.kit import ROOT, kit

SCRIPT = ROOT / "examples" / "generate.py"
MIB = 1 << 20


def test_a_model_larger_than_the_memory_of_its_container(tmp_path: Path) -> None:
    """Made, loaded and run within 600 MiB, of which torch takes a good part; the same bits as wholly in memory without a limit."""
    shutil.copy(SCRIPT, tmp_path)
    within = kit(
        "run", "--image", "cpu", "--memory", "600MiB", SCRIPT.name, "--size", "800MiB", "--tokens", "2", cwd=tmp_path
    )
    assert within.code == 0, within.out + within.err
    without = kit(
        "run", "--image", "cpu", SCRIPT.name, "--size", "800MiB", "--tokens", "2", "--place", "cpu", cwd=tmp_path
    )

    assert sum(file.stat().st_size for file in (tmp_path / "big-model").iterdir()) > 800 * MIB
    assert re.findall(r"wrote .*", within.out) == re.findall(r"wrote .*", without.out) != []


def test_a_checkpoint_that_takes_torch_is_estimated_in_the_image(tmp_path: Path) -> None:
    """A folder outside of the working folder is mounted where it lies."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    torch.save(make("decoder").state_dict(), folder / "pytorch_model.bin")
    (tmp_path / "work").mkdir()
    done = kit("estimate", str(folder), "--image", "cpu", cwd=tmp_path / "work")

    assert done.code == 0, done.err
    assert "tensors of elsewhere" in done.out
