"""`kit plan`: the memory that a model takes on each rank, before anything is started."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from accelkit.host.sizing import Need, Shape

app = typer.Typer(rich_markup_mode=None)

_UNITS = {"k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
_KEPT = {"fp32": 4, "bf16": 2, "fp16": 2}


@app.command(no_args_is_help=True)
def plan(
    model: Path = typer.Argument(
        None, metavar="[MODEL]", help="Folder, index or file of safetensors; only headers are read."
    ),
    params: str = typer.Option(None, "--params", metavar="N", help="Parameters instead of a model: 7b, 350m."),
    layers: int = typer.Option(0, "--layers", metavar="N", help="Repeated blocks, with --params."),
    hidden: int = typer.Option(0, "--hidden", metavar="N", help="Width of a block; unset: found in the model."),
    ranks: int = typer.Option(1, "--ranks", metavar="N", help="Ranks of the run."),
    dp_replicate_size: int = typer.Option(1, "--dp-replicate-size", metavar="N", help="Copies of the sharded model."),
    tp_size: int = typer.Option(1, "--tp-size", metavar="N", help="Ranks that share each layer."),
    precision: str = typer.Option("no", "--precision", metavar="no|bf16|fp16", help="Mixed precision."),
    dtype: str = typer.Option(
        None, "--dtype", metavar="fp32|bf16|fp16", help="Kept parameters; unset: as in the files, else fp32."
    ),
    optimizer: str = typer.Option("adamw", "--optimizer", help="adamw, adam, sgd-momentum or sgd."),
    tokens: int = typer.Option(
        0, "--tokens", metavar="N", help="Tokens of a rank's micro-batch; 0: leave activations out."
    ),
    recompute: bool = typer.Option(False, "--activation-checkpointing", help="Blocks compute their forward again."),
    json_: bool = typer.Option(False, "--json", help="Print JSON, in bytes."),
) -> None:
    """Tell the memory per rank under every strategy: parameters, gradients, optimizer, activations, what is gathered."""
    from dataclasses import replace

    from accelkit.host import sizing

    shape, found = _shape(model, params, layers)
    shape = replace(shape, hidden=hidden) if hidden else shape
    kept = _KEPT.get(dtype, 0) if dtype else (4 if precision != "no" else found)
    _check(dtype, ranks, dp_replicate_size * tp_size)
    shards = ranks // (dp_replicate_size * tp_size)
    base = sizing.Setting(kept=kept, precision=precision, optimizer=optimizer, tokens=tokens, recomputes=recompute)
    sharded = replace(base, shards=shards, tp=tp_size)
    rows = {
        "single": sizing.need(shape, base, "single"),
        "ddp": sizing.need(shape, base, "ddp"),
        "fsdp": sizing.need(shape, sharded, "fsdp"),
        "fsdp, no reshard": sizing.need(shape, replace(sharded, reshards=False), "fsdp"),
        "fsdp, no wrap": sizing.need(shape, replace(sharded, wraps=False), "fsdp"),
    }
    _show(shape, rows, json_=json_)


def _shape(model: Path | None, params: str | None, layers: int) -> "tuple[Shape, int]":
    """The model's shape, and the bytes of a parameter in its files (4 without any)."""
    from accelkit.contract.safetensors_layout import WIDTHS
    from accelkit.host import sizing
    from accelkit.host.errors import UsageError
    from accelkit.host.estimate import headers

    if (model is None) == (params is None):
        raise UsageError("plan: give a model or --params", hint="kit plan MODEL, or kit plan --params 7b --layers 32")
    if model is not None:
        file = headers.find(model)
        if file is None:
            raise UsageError(f"{model}: no safetensors files there", hint="name a model's folder, or give --params 7b")
        tensors = headers.entries(file)
        shape = sizing.shape_of({name: entry.shape for name, entry in tensors.items()})
        return shape, max((WIDTHS[entry.dtype] for entry in tensors.values()), default=4)
    text = str(params).lower()
    try:
        count = int(float(text[:-1]) * _UNITS[text[-1]]) if text[-1:] in _UNITS else int(text)
    except ValueError:
        raise UsageError(f"--params {params}: must be a number, or one like 7b or 350m") from None
    blocks = (int(count * 0.95) // layers,) * layers if layers else ()
    return sizing.Shape(parameters=count, largest=max(blocks, default=count) // 3, blocks=blocks), 4


def _check(dtype: str | None, ranks: int, inner: int) -> None:
    from accelkit.host.errors import UsageError

    if dtype is not None and dtype not in _KEPT:
        raise UsageError(f"--dtype {dtype}: must be one of {', '.join(_KEPT)}")
    if inner < 1 or ranks < 1 or ranks % inner:
        raise UsageError(f"--ranks {ranks}: not a multiple of {inner} (copies x ranks that share layers)")


def _show(shape: "Shape", rows: "dict[str, Need]", *, json_: bool) -> None:
    import json
    from dataclasses import asdict

    from accelkit.host import render

    if json_:
        body = {name: {**asdict(need), "peak": need.peak} for name, need in rows.items()}
        render.out(json.dumps(body, indent=2))
        return
    blocks = f", {len(shape.blocks)} blocks" if shape.blocks else ""
    render.note(
        f"{shape.parameters / 1e6:,.1f} million parameters{blocks}; MiB a rank, without Python and torch themselves"
    )
    names = ("parameters", "gradients", "optimizer", "buckets", "gathered", "activations", "peak")
    table = [(name, *(f"{getattr(need, field) / 2**20:,.0f}" for field in names)) for name, need in rows.items()]
    render.out(render.table(("STRATEGY", *(field.upper() for field in names)), table))
