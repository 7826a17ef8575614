"""The model and the checkpoint that big_models.py measures: a decoder of 2.05 G parameters, 4.1 GB in bfloat16, four shards.

python bench/make_checkpoint.py FOLDER
"""

import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own short name for it)
from safetensors.torch import save_file
from torch import nn

WIDTH, LAYERS, VOCABULARY, HEADS, SHARDS = 2560, 24, 32000, 20, 4
INDEX = "model.safetensors.index.json"


class Block(nn.Module):
    """A layer: attention and a perceptron, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.norm_2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, tokens, WIDTH] -> the same."""
        batch, tokens, _ = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(batch, tokens, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Decoder(nn.Module):
    """A decoder-only language model."""

    def __init__(self, layers: int = LAYERS) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(layers)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """[batch, tokens] int64 -> [batch, tokens, VOCABULARY]."""
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def make_checkpoint(folder: Path) -> None:
    """Write the checkpoint, unless it is there."""
    if (folder / INDEX).exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in Decoder().state_dict().items()}
    torch.manual_seed(0)
    filler = torch.randn(1 << 22).mul_(0.02).to(torch.bfloat16)
    total = sum(shape.numel() for shape in shapes.values())
    weight_map: dict[str, str] = {}
    shard: dict[str, torch.Tensor] = {}
    done = number = 0
    for name, shape in shapes.items():
        shard[name] = _values(name, shape, filler)
        weight_map[name] = f"model-{number + 1:05d}-of-{SHARDS:05d}.safetensors"
        done += shape.numel()
        if done >= total * (number + 1) / SHARDS:
            save_file(shard, folder / weight_map[name], metadata={"format": "pt"})
            shard, number = {}, number + 1
    index = {"metadata": {"total_size": total * 2}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index), encoding="utf-8")


def _values(name: str, shape: torch.Size, filler: torch.Tensor) -> torch.Tensor:
    if name.endswith("bias"):
        return torch.zeros(shape, dtype=torch.bfloat16)
    if "norm" in name:
        return torch.ones(shape, dtype=torch.bfloat16)
    count = shape.numel()
    return filler.repeat(-(-count // filler.numel()))[:count].view(shape).contiguous()


if __name__ == "__main__":
    make_checkpoint(Path(sys.argv[1]))
