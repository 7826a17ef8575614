"""Models of the transformers library, from checkpoints of its making: the same bits from every placement."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from accelkit import init_empty_weights, load_checkpoint_and_dispatch
from accelkit.utils import find_tied_parameters

transformers = pytest.importorskip("transformers", reason="transformers is not installed here")
pytestmark = pytest.mark.filterwarnings("ignore")

SMALL = {"vocab_size": 120, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}


def config(kind: str) -> Any:
    """Tiny models of three families."""
    if kind == "gpt2":
        return transformers.GPT2Config(vocab_size=120, n_embd=32, n_layer=3, n_head=2, n_positions=64)
    if kind == "llama":
        return transformers.LlamaConfig(
            **SMALL, intermediate_size=64, num_key_value_heads=1, max_position_embeddings=64
        )
    return transformers.T5Config(
        vocab_size=120, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, decoder_start_token_id=0
    )


CLASSES = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM", "t5": "T5ForConditionalGeneration"}


def run(kind: str, model: nn.Module) -> torch.Tensor:
    """Scores of a fixed input; a cache is passed by keyword where the family has one."""
    ids = torch.arange(12).view(2, 6)
    inputs = {"input_ids": ids, "decoder_input_ids": ids.flip(1)} if kind == "t5" else {"input_ids": ids}
    if kind == "llama":
        inputs["past_key_values"] = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        output = model(**inputs)
    if kind == "llama":
        assert inputs["past_key_values"].get_seq_length() == 6, "the cache that was passed was not filled"
    return output.logits


@pytest.mark.slow
@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("size", ["10GB", "20KB"])
@pytest.mark.parametrize("placement", ["cpu", "disk", "auto", "mixed"])
def test_every_placement_gives_the_same_bits(tmp_path: Path, kind: str, size: str, placement: str) -> None:
    """One file and shards; ties restored; two threads; generation; after saving the dispatched model and loading that."""
    torch.manual_seed(0)
    family = getattr(transformers, CLASSES[kind])
    model = family(config(kind)).eval()
    expected = run(kind, model)
    model.save_pretrained(tmp_path / "saved", max_shard_size=size)
    placed = place(family, kind, tmp_path / "saved", placement)

    assert torch.equal(run(kind, placed), expected)
    assert find_tied_parameters(placed) == find_tied_parameters(model)
    results: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: results.append(run(kind, placed))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(result, expected) for result in results)
    prompt = torch.arange(4)[None]
    settings = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(placed.generate(prompt, **settings), model.generate(prompt, **settings))
    placed.save_pretrained(tmp_path / "again")
    assert torch.equal(run(kind, family.from_pretrained(tmp_path / "again").eval()), expected)


def place(family: Any, kind: str, path: Path, placement: str) -> Any:
    """The model from its checkpoint, built empty."""
    with init_empty_weights():
        empty = family(config(kind)).eval()
    parts = [name for name, child in empty.named_children() if any(True for _ in child.parameters())]
    maps = {"cpu": {"": "cpu"}, "disk": {"": "disk"}, "auto": "auto"}
    mixed = {name: ("disk", "cpu")[index % 2] for index, name in enumerate(parts)}
    return load_checkpoint_and_dispatch(empty, path, maps.get(placement, mixed), strict=True, resident_memory="30KB")
