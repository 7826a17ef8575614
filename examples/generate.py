"""Writes text with a model that is larger than the memory it may use: its weights stay in their files, and are read as they run.

    kit run --image cpu --memory 1g examples/generate.py --size 2GiB

The model is made up (random weights), so the text is a list of numbers; what matters is that it is the same wherever the weights are.
A checkpoint of that size is made in --folder, unless it is there.
"""

import argparse
import json
import resource
import time
import zlib
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own short name for it)
from safetensors.torch import save_file
from torch import nn

from accelkit import Accelerator, init_empty_weights, load_checkpoint_and_dispatch
from accelkit.utils import convert_file_size_to_int

WIDTH, HEADS, VOCABULARY, LAYERS_A_FILE = 1024, 8, 4096, 2


class Block(nn.Module):
    """Attention and a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, tokens, WIDTH] -> the same."""
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(batch, tokens, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Decoder(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(layers)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """[batch, tokens] int64 -> [batch, tokens, VOCABULARY]."""
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def empty_model(size: int) -> Decoder:
    """A model of at least so many bytes in bfloat16, without memory."""
    with init_empty_weights():
        layer = sum(parameter.numel() for parameter in Block().parameters()) * 2
        return Decoder(-(-size // layer)).eval()


def make_checkpoint(model: Decoder, folder: Path) -> None:
    """Write made-up weights, a few layers at a time, and the index that says which file holds what."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    parts = [("", {"embedding": model.embedding, "norm": model.norm})]
    for first in range(0, len(model.blocks), LAYERS_A_FILE):
        blocks = list(enumerate(model.blocks))[first : first + LAYERS_A_FILE]
        parts.append(("blocks.", {str(number): block for number, block in blocks}))
    weight_map: dict[str, str] = {}
    for number, (prefix, modules) in enumerate(parts):
        file = f"model-{number + 1:05d}-of-{len(parts):05d}.safetensors"
        shard = {
            f"{prefix}{name}.{key}": torch.empty(value.shape, dtype=torch.bfloat16).normal_(
                "norm" in f"{name}.{key}", 0.02
            )
            for name, module in modules.items()
            for key, value in module.state_dict().items()
        }
        save_file(shard, folder / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(shard, file))
    index.write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")


def main() -> None:
    """Make, load, write, and tell what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="2GiB", help="of the model, such as 500MiB")
    parser.add_argument("--folder", type=Path, default=Path("big-model"), help="where its checkpoint is, or is made")
    parser.add_argument("--place", default="disk", help='where the weights are: "disk", "cpu", "auto", ...')
    parser.add_argument("--resident", default="256MiB", help="how much of the weights on disk may be in memory at once")
    parser.add_argument("--tokens", type=int, default=8, help="how many to write")
    arguments = parser.parse_args()

    accelerator = Accelerator()
    model = empty_model(convert_file_size_to_int(arguments.size))
    make_checkpoint(model, arguments.folder)
    started = time.perf_counter()
    place = arguments.place if arguments.place in ("auto", "balanced", "sequential") else {"": arguments.place}
    model = load_checkpoint_and_dispatch(
        model, arguments.folder, place, strict=True, resident_memory=arguments.resident
    )
    loaded = time.perf_counter()
    ids = torch.tensor([[1, 2, 3, 4]])
    with torch.inference_mode():
        for _ in range(arguments.tokens):
            scores = model(ids)
            ids = torch.cat([ids, scores[:, -1:].argmax(-1)], dim=-1)
    seconds = time.perf_counter() - loaded
    bits = zlib.crc32(scores.view(torch.int16).numpy().tobytes())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    accelerator.print(
        f"{sum(p.numel() for p in model.parameters()) / 2**29:.2f} GiB of weights, loaded in {loaded - started:.3f} s, "
        f"{arguments.tokens / seconds:.2f} tokens a second, {peak:.0f} MiB at the peak"
    )
    accelerator.print(f"wrote {ids[0, 4:].tolist()} (scores: {bits:08x})")


if __name__ == "__main__":
    main()
