"""`kit estimate` as it is typed."""

import json
from pathlib import Path

import pytest
import torch

from accelkit import infer_auto_device_map
from tests.support.bigmodels import make, save
from tests.support.kit import kit


def test_a_checkpoint_is_told_from_its_headers(tmp_path: Path) -> None:
    """Table, bars and picture; JSON says the same; the devices are those that were given."""
    save(make("decoder"), tmp_path / "m", "shards")
    words = ["estimate", "m", "--dtype", "bfloat16,float32", "--max-memory", "0=4KiB", "--max-memory", "cpu=9KB,1=0"]
    shown = kit(*words, "--svg", "map.svg", cwd=tmp_path)
    data = json.loads(kit(*words, "--json", cwd=tmp_path).out)

    assert shown.code == 0, shown.err
    assert (tmp_path / "map.svg").read_text().startswith("<svg")
    assert [row["dtype"] for row in data["needs"]] == ["bfloat16", "float32"]
    assert [share["device"] for share in data["devices"]] == [0, "cpu", "disk"]
    assert [share["limit"] for share in data["devices"]] == [4096, 9000, None]
    assert sum(share["used"] for share in data["devices"]) == data["needs"][0]["weights"]
    assert f"{data['parameters']:,} parameters" in shown.out
    assert "layers.0" in data["device_map"]
    assert not (tmp_path / ".kit").exists(), "nothing was run"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.safetensors"], "no such file or folder"),
        (["m", "--dtype", "float"], "must be one of stored, float32"),
        (["m", "--max-memory", "gpu=1g"], "devices are 0, 1, ... and cpu"),
        (["m", "--max-memory", "0=1x"], "'1x' is not a size"),
        (["m", "--max-memory", "0=1g,00=2g"], "there is a limit for 0 already"),
        ([""], "the model is empty"),
        (["m", "--svg", "no/where/map.svg"], "--svg no/where/map.svg: No such file"),
        (["cut"], "is cut short"),
        (["two"], "holds several models: a.safetensors, b.safetensors"),
    ],
)
def test_what_cannot_be_estimated(tmp_path: Path, words: list[str], message: str) -> None:
    """One message, exit code 2."""
    whole = save(make("decoder"), tmp_path / "m", "one file")
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "model.safetensors").write_bytes(whole.read_bytes()[:-1])
    (tmp_path / "two").mkdir()
    for name in ("a", "b"):
        (tmp_path / "two" / f"{name}.safetensors").write_bytes(whole.read_bytes())
    done = kit("estimate", *words, cwd=tmp_path)

    assert done.code == 2
    assert message in done.err
    assert done.err.count("kit: error") == 1


def test_a_folder_of_transformers_is_built_where_it_is_said_where(tmp_path: Path) -> None:
    """Weights beside a config.json: the headers are quick; with --on the model is built, and the map is that of the runtime, ties kept."""
    import transformers

    config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=100, n_positions=64)
    model = transformers.GPT2LMHeadModel(config)
    model.save_pretrained(tmp_path / "gpt2")
    words = ["estimate", "gpt2", "--json", "--max-memory", "0=6KiB,cpu=20KiB", "--dtype", "float32"]
    quick, built = kit(*words, cwd=tmp_path), kit(*words, "--on", "local", cwd=tmp_path)
    limits = {0: 6 * 1024, "cpu": 20 * 1024}

    assert "layers are taken from names" in quick.err
    assert json.loads(quick.out)["needs"][0]["weights"] == json.loads(built.out)["needs"][0]["weights"]
    wanted = infer_auto_device_map(model, limits, no_split_module_classes=["GPT2Block"])
    found = json.loads(built.out)["device_map"]
    places = {name: str(place) for name, place in found.items()}
    for layer, place in wanted.items():
        inside = {where for name, where in places.items() if f"{name}.".startswith(f"{layer}.")}
        assert inside <= {str(place)}, (layer, place, places)


def test_what_takes_torch_runs_on_a_rank(tmp_path: Path) -> None:
    """A .bin checkpoint, and a config of transformers, whose model has never had weights."""
    import transformers

    (tmp_path / "old").mkdir()
    torch.save(make("decoder").state_dict(), tmp_path / "old" / "pytorch_model.bin")
    config = transformers.LlamaConfig(
        hidden_size=4096, num_hidden_layers=80, intermediate_size=11008, architectures=["LlamaForCausalLM"]
    )
    config.save_pretrained(tmp_path / "huge")
    local = ["--on", "local", "--json", "--max-memory", "0=20GiB,cpu=20GiB"]
    old = json.loads(kit("estimate", "old", *local, cwd=tmp_path).out)
    huge = json.loads(kit("estimate", "huge/config.json", *local, cwd=tmp_path).out)

    assert (
        old["needs"][0]["weights"]
        == sum(value.numel() * 4 for name, value in make("decoder").state_dict().items() if name != "head.weight")
        + 40 * 16 * 4
    )  # a state dict does not say what is tied
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    assert huge["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert huge["device_map"]["model.layers.79"] == "disk"
    assert huge["needs"][0]["largest_layer"] == "model.layers.0"
    assert not huge["guessed"]
