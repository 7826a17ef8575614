"""What training takes at most, as torch's allocator gives it out. Run once per rank; rank 0 writes its findings.

python -m tests.distributed.memory_checks FOLDER "decoder fsdp"
"""

import bisect
import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from accelkit import Accelerator, AcceleratorState, DistributedDataParallelKwargs, FullyShardedDataParallelPlugin

WIDTH, TOKENS, VOCABULARY, STEPS = 256, 64, 2000, 4


class Layer(nn.Module):
    """Attention and a perceptron, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, tokens, WIDTH] -> the same."""
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(self.first(x)).view(batch, tokens, 3, 8, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, WIDTH))
        return x + self.down(functional.gelu(self.up(self.second(x))))


class Decoder(nn.Module):
    """Layers between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(6))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """[batch, tokens] -> [batch, tokens, WIDTH]."""
        x = self.embed(batch)
        for layer in self.layers:
            x = layer(x)
        return x


def layers() -> tuple[nn.Module, torch.Tensor]:
    """Twelve equal layers and hardly any activation."""
    return nn.Sequential(*(nn.Linear(384, 384, bias=False) for _ in range(12))), torch.ones(1, 384)


def decoder() -> tuple[nn.Module, torch.Tensor]:
    """An embedding that is in no block, and activations that count."""
    return Decoder(), torch.zeros(8, TOKENS, dtype=torch.int64)


MODELS = {"layers": (layers, "*"), "decoder": (decoder, "layers.*")}


def settings(wrap: str) -> dict[str, dict[str, Any]]:
    """Arguments of the Accelerator, by the words of the plan."""
    plugin = FullyShardedDataParallelPlugin
    return {
        "ddp": {"strategy": "ddp"},
        "ddp view": {"kwargs_handlers": [DistributedDataParallelKwargs(gradient_as_bucket_view=True)]},
        "fsdp": {"fsdp_plugin": plugin(module_names_to_wrap=wrap)},
        "fsdp bf16": {"fsdp_plugin": plugin(module_names_to_wrap=wrap), "mixed_precision": "bf16"},
        "fsdp keep": {"fsdp_plugin": plugin(module_names_to_wrap=wrap, reshard_after_forward=False)},
        "fsdp whole": {"fsdp_plugin": plugin()},
    }


def measure(name: str, arguments: dict[str, Any], trace: Path) -> int:
    """Most bytes that tensors have during a step: of the steps after two, that in which the backend's threads let go soonest."""
    AcceleratorState._reset_state()
    acc = Accelerator(**arguments)
    activity = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[activity], profile_memory=True) as profiler:
        model, batch = MODELS[name][0]()
        model, optimizer = acc.prepare(model, torch.optim.AdamW(model.parameters(), foreach=False))
        for _ in range(STEPS):
            with torch.profiler.record_function("a step"):
                acc.backward(model(batch).sum())
                optimizer.step()
                optimizer.zero_grad()
    profiler.export_chrome_trace(str(trace))
    acc.free_memory()
    gc.collect()
    events = json.loads(trace.read_text())["traceEvents"]
    begun = sorted(
        event["ts"] for event in events if event.get("name") == "a step" and event.get("cat") == "user_annotation"
    )
    assert len(begun) == STEPS
    live, peaks = 0, [0] * (STEPS + 1)
    for when, size in sorted((e["ts"], e["args"]["Bytes"]) for e in events if e.get("name") == "[memory]"):
        live += size
        step = bisect.bisect_right(begun, when)
        peaks[step] = max(peaks[step], live)
    return min(peaks[3:])


if __name__ == "__main__":
    folder, words = Path(sys.argv[1]), sys.argv[2]
    first = Accelerator()
    found = {
        f"{name} {word}": measure(name, arguments, folder / f"trace-{first.process_index}.json")
        for name, (_, wrap) in MODELS.items()
        for word, arguments in settings(wrap).items()
        if f"{name} {word}".startswith(words)
    }
    if first.is_main_process:
        (folder / f"{first.num_processes}.json").write_text(json.dumps(found))
