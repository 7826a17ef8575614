"""Small models of the shapes that big ones have, and their checkpoints."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

WIDTH, VOCABULARY = 16, 40


class Layer(nn.Module):
    """Attention with rotary angles and a perceptron."""

    def __init__(self, cross: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.cross = nn.MultiheadAttention(WIDTH, 2, batch_first=True) if cross else None
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, angles: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
        """[batch, tokens, WIDTH] -> the same."""
        q, k, v = (self.qkv(self.norm(x)) * angles.repeat(3)).chunk(3, dim=-1)
        x = x + torch.softmax(q @ k.transpose(1, 2), dim=-1) @ v
        if self.cross is not None and memory is not None:
            x = x + self.cross(x, memory, memory, need_weights=False)[0]
        return x + self.down(torch.relu(self.up(x)))


class Decoder(nn.Module):
    """Embedding, layers and a head tied to the embedding; rotary angles in a buffer that is not saved."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList([Layer() for _ in range(layers)])
        self.scale = nn.Parameter(torch.ones(()))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("angles", torch.cos(torch.arange(WIDTH).float()), persistent=False)

    def forward(self, ids: torch.Tensor, *, extra: dict[str, Any] | None = None) -> dict[str, torch.Tensor]:
        """[batch, tokens] -> scores; counts the layers in `extra`."""
        x = self.embedding(ids) * self.scale
        for layer in self.layers:
            x = layer(x, self.angles)
            if extra is not None:
                extra["layers"] = extra.get("layers", 0) + 1
        return {"scores": self.head(x)}


class EncoderDecoder(nn.Module):
    """One embedding for encoder, decoder and head; statistics of a norm in saved buffers, one of them an integer."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Embedding(VOCABULARY, WIDTH)
        self.encoder = nn.ModuleDict({"embed": self.shared, "first": Layer(), "second": Layer()})
        self.norm = nn.BatchNorm1d(WIDTH)
        self.decoder = nn.ModuleDict({"embed": nn.Embedding(VOCABULARY, WIDTH), "first": Layer(cross=True)})
        self.decoder["embed"].weight = self.shared.weight
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.head.weight = self.shared.weight
        self.register_buffer("angles", torch.cos(torch.arange(WIDTH).float()))
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("empty", torch.empty(0, 3))

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """[batch, tokens] -> scores."""
        x = self.encoder["second"](self.encoder["first"](self.encoder["embed"](ids), self.angles), self.angles)
        memory = self.norm(x.transpose(1, 2)).transpose(1, 2)
        return {"scores": self.head(self.decoder["first"](self.decoder["embed"](ids), self.angles, memory))}


KINDS: dict[str, type[nn.Module]] = {"decoder": Decoder, "encoder-decoder": EncoderDecoder}


def make(kind: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A model with the same random weights each time, for evaluation."""
    torch.manual_seed(0)
    return KINDS[kind]().to(dtype).eval()


def ids() -> torch.Tensor:
    """An input of all models."""
    return torch.arange(10).view(2, 5) % VOCABULARY


def scores(model: nn.Module) -> torch.Tensor:
    """What a model makes of the input, without gradients."""
    with torch.no_grad():
        found: torch.Tensor = model(ids())["scores"]
        return found


def untied_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """A state dict in which a tensor stands under the first of its names alone."""
    seen: set[int] = set()
    kept: dict[str, torch.Tensor] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if id(value) not in seen:
            seen.add(id(value))
            kept[name] = value.detach()
    return kept


def save(model: nn.Module, folder: Path, form: str) -> Path:
    """Write a model's checkpoint in one of `FORMS`; returns what a user would name."""
    import json

    folder.mkdir(parents=True, exist_ok=True)
    state = untied_state(model)
    if form == "one file":
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        return folder / "model.safetensors"
    if form == "torch":
        torch.save(state, folder / "pytorch_model.bin")
        return folder
    if form == "distributed":
        import torch.distributed.checkpoint as dcp

        dcp.save({"model": model.state_dict()}, checkpoint_id=folder, no_dist=True)
        return folder
    names = list(state)
    shards = {"a.safetensors": names[: len(names) // 2], "b.safetensors": names[len(names) // 2 :]}
    for file, held in shards.items():
        save_file({name: state[name] for name in held}, folder / file)
    weight_map = {name: file for file, held in shards.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


FORMS = ("one file", "shards", "torch", "distributed")
