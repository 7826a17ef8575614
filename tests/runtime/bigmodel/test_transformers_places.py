"""transformers' own `from_pretrained(device_map=...)`, with this library under the name of the one it asks for."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import peer
from tests.support.kit import ROOT

pytestmark = pytest.mark.slow

pytest.importorskip("transformers", reason="transformers is not installed here")

SCRIPT = """
import json, os, sys
import torch
from tests.support import peer
peer.install()
from transformers import (
    GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration,
)

KINDS = {
    "gpt2": (GPT2LMHeadModel, GPT2Config(vocab_size=64, n_embd=16, n_layer=3, n_head=2, n_positions=32, bos_token_id=1, eos_token_id=2)),
    "llama": (LlamaForCausalLM, LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2, max_position_embeddings=32)),
    "t5": (T5ForConditionalGeneration, T5Config(
        vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0)),
}
kind, folder = sys.argv[1:]
form, config = KINDS[kind]
torch.manual_seed(0)
ids = torch.randint(3, 60, (2, 6))

def results(model):
    extra = {"decoder_input_ids": ids} if config.is_encoder_decoder else {}
    with torch.no_grad():
        scores = model(input_ids=ids, **extra).logits
    written = model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, max_new_tokens=5, do_sample=False)
    return scores, written

def same(model):
    return all(torch.equal(a, b) for a, b in zip(results(model), expected, strict=True))

def parts(model):
    for name, child in model.named_children():
        below = [f"{name}.{key}" for key, _ in child.named_children()]
        yield from below or [name]

model = form(config).eval()
expected = results(model)
model.save_pretrained(f"{folder}/saved", max_shard_size="8KB")
halves = {name: ("cpu", "disk")[number % 2] for number, name in enumerate(parts(model))}
found = {}
for placement in ("auto", "balanced", "sequential", {"": "cpu"}, {"": "disk"}, halves):
    limits = {"max_memory": {"cpu": 20000}} if isinstance(placement, str) else {}
    placed = form.from_pretrained(f"{folder}/saved", device_map=placement, offload_folder=f"{folder}/offload", **limits).eval()
    name = placement if isinstance(placement, str) else str(list(placement.items())[:3])
    places = getattr(placed, "hf_device_map", {})
    found[name] = {"same": same(placed), "disk": "disk" in places.values()}
    placed.save_pretrained(f"{folder}/again")
    found[name]["again"] = same(form.from_pretrained(f"{folder}/again").eval())
print(json.dumps({"found": found, "written": os.listdir(f"{folder}/offload")}))
"""


@pytest.mark.skipif(
    peer.wheel_folder() is None, reason="transformers asks for the package accelerate, which is not installed"
)
@pytest.mark.parametrize("kind", ["gpt2", "llama", "t5"])
def test_transformers_places_its_models_with_this_library(tmp_path: Path, kind: str) -> None:
    """Scores and greedy texts are those of the model in memory, also saved and loaded again; nothing is written to be offloaded."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, kind, str(tmp_path)], cwd=ROOT, capture_output=True, check=False, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])

    assert len(result["found"]) == 6
    assert all(one["same"] and one["again"] for one in result["found"].values()), result
    assert sum(one["disk"] for one in result["found"].values()) == 5
    assert result["written"] == []
