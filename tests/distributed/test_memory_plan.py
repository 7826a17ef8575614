"""What `kit plan` tells of memory against what training takes, on two ranks."""

import json
from dataclasses import replace
from pathlib import Path

from safetensors.torch import save_file

from accelkit.host.estimate import headers
from accelkit.host.sizing import Setting, need, shape_of
from tests.distributed.memory_checks import MODELS, TOKENS
from tests.support.kit import kit
from tests.support.ranks import run_ranks

SETTINGS = {
    "ddp": Setting(),
    "ddp view": Setting(bucket_view=True),
}


def test_the_plan_is_near_what_is_taken(tmp_path: Path) -> None:
    """Within 15 % under ddp, from the headers of the model's file alone.

    Under fsdp threads of gloo let go of memory when they get to it: see tests/host/test_sizing.py.
    """
    size = 2
    outcomes = run_ranks(size, "-m", "tests.distributed.memory_checks", str(tmp_path), "decoder ddp", timeout=280)
    assert [outcome.code for outcome in outcomes] == [0] * size, outcomes[0].output
    found = json.loads((tmp_path / f"{size}.json").read_text())
    off = {}
    for name, (make, _) in MODELS.items():
        save_file(make()[0].state_dict(), tmp_path / f"{name}.safetensors")
        tensors = headers.entries(tmp_path / f"{name}.safetensors")
        shape = shape_of({key: entry.shape for key, entry in tensors.items()})
        for word, setting in SETTINGS.items():
            tokens = 8 * TOKENS if name == "decoder" else 0
            if f"{name} {word}" not in found:
                continue
            wanted = need(shape, replace(setting, shards=size, tokens=tokens), word.split()[0]).peak
            off[f"{name} {word}"] = wanted / found[f"{name} {word}"] - 1

    assert {key: value for key, value in off.items() if abs(value) > 0.15} == {}, json.dumps(off)
    assert len(off) == 2


def test_the_command(tmp_path: Path) -> None:
    """From a folder or a number of parameters; what cannot be is refused."""
    save_file(MODELS["layers"][0]()[0].state_dict(), tmp_path / "model.safetensors")
    words = ("plan", ".", "--ranks", "4", "--json")
    found = json.loads(kit(*words, cwd=tmp_path).out)
    assert found["single"]["parameters"] == 12 * 384 * 384 * 4
    assert found["fsdp"]["optimizer"] == 2 * 12 * 384 * 384
    assert "fsdp, no wrap" in kit("plan", "--params", "7b", "--layers", "32", "--ranks", "8", cwd=tmp_path).out
    for wrong in (["--ranks", "3", "--tp-size", "2", "."], ["--params", "many"], [".", "--params", "7b"], ["nowhere"]):
        assert kit("plan", *wrong, cwd=tmp_path).code == 2, wrong
