"""`kit estimate`: what a model needs, and what fits where, before anything is loaded."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from accelkit.host.cli import options

if TYPE_CHECKING:
    from accelkit.contract.anatomy import Anatomy
    from accelkit.contract.placement import Place
    from accelkit.host.estimate.figures import Needs, Share

app = typer.Typer(rich_markup_mode=None)


@app.command(no_args_is_help=True)
def estimate(
    model: str = typer.Argument(
        ..., help="Checkpoint (file, index or folder), folder with a config.json, or a name that transformers knows."
    ),
    dtype: list[str] = typer.Option(
        None, help="stored, float32, float16, bfloat16, float8, int8, int4; several with commas; unset: most of them."
    ),
    max_memory: list[str] = typer.Option(
        None, metavar="DEVICE=SIZE", help="Limits such as 0=20GiB,cpu=60GiB; unset: what this machine has."
    ),
    on: str = typer.Option(
        None,
        metavar="docker|local",
        help="Where a config is built, which takes torch; unset: as kit run, and only if there are no headers.",
    ),
    image: str = typer.Option(None, help="Image for that; unset: as kit run."),
    trust_remote_code: bool = typer.Option(False, "--trust-remote-code", help="Run code that comes with a config."),
    json_: bool = typer.Option(False, "--json", help="Print JSON."),
    svg: Path = typer.Option(None, metavar="FILE", help="Also draw the device map as a picture."),
    config_file: Path = options.CONFIG_FILE,
) -> None:
    """Tell what a model needs: total, largest layer, inference, training with Adam; and what fits where."""
    from accelkit.host import render
    from accelkit.host.estimate import drawing, figures

    dtypes = _words(dtype) or list(figures.SHOWN)
    for name in dtypes:
        figures.check_dtype(name)
    limits = _limits(_words(max_memory))
    settings: dict[str, object] = {key: value for key, value in (("run.on", on), ("run.image", image)) if value}
    found = _anatomy(model, settings, config_file, trust_remote_code)
    rows = [figures.needs(found, name) for name in dtypes]
    shares, solution = figures.spread(found, dtypes[0], limits)
    if svg is not None:
        _write(svg, drawing.svg(f"{model}, {dtypes[0]}: {_total(rows[0])}", shares))
    if json_:
        render.out(_as_json(model, found, rows, shares, solution.notes))
        return
    _print(model, found, rows, shares)
    for layer, why in list(solution.notes.items())[:3]:
        render.detail(render.on_a_line(f"{layer} {why}"))


def _words(given: list[str] | None) -> list[str]:
    return [word.strip() for words in given or () for word in words.split(",") if word.strip()]


def _limits(words: list[str]) -> "dict[Place, int]":
    """Bytes by device. Raises UsageError that quotes what is wrong."""
    from accelkit.host import hardware
    from accelkit.host.config import syntax
    from accelkit.host.errors import UsageError

    if not words:
        found = hardware.probe()
        return {**{gpu.index: gpu.memory for gpu in found.gpus}, "cpu": found.memory}
    limits: dict[Place, int] = {}
    for word in words:
        device, _, size = word.partition("=")
        if not (device.isdecimal() or device == "cpu"):
            raise UsageError(f"--max-memory {word}: devices are 0, 1, ... and cpu; what fits on none goes to the disk")
        place: Place = int(device) if device.isdecimal() else device
        if place in limits:
            raise UsageError(f"--max-memory {word}: there is a limit for {place} already")
        try:
            limits[place] = 0 if size.strip() == "0" else syntax.parse_size(size)
        except ValueError as error:
            raise UsageError(f"--max-memory {word}: {error}") from None
    return limits


def _anatomy(model: str, settings: dict[str, object], config_file: Path | None, trusted: bool) -> "Anatomy":
    """From headers where there are any; otherwise, or where it is said what is to build a config, one rank is asked."""
    from accelkit.host import render
    from accelkit.host.cli.run import request_of
    from accelkit.host.estimate import headers, inside
    from accelkit.host.launch.signals import Guard, Interrupted

    _refuse_nothing(model)
    file = headers.find(Path(model))
    configured = Path(model).is_dir() and (Path(model) / "config.json").is_file()
    if file is not None and not (configured and settings):
        if configured:
            render.note("layers are taken from names; --on local or --image NAME builds the model and knows its own")
        return headers.read(file)
    why = "has no safetensors header to read" if file is None else "has a config.json"
    render.note(f"{model} {why}: one rank builds it, without memory ...")
    try:
        with Guard() as guard:
            resolved = options.load({**inside.ONE_RANK, **settings}, config_file)
            return inside.ask(request_of(resolved, inside.program(model, trust_remote_code=trusted)), guard)
    except Interrupted as told:
        raise typer.Exit(told.exit_code) from None


def _refuse_nothing(model: str) -> None:
    from accelkit.host.errors import UsageError

    path = Path(model)
    if not model.strip():
        raise UsageError("the model is empty", hint="name a checkpoint, a folder, or a model that transformers knows")
    if not path.exists() and (path.is_absolute() or model.startswith(".") or path.suffix or model.count("/") > 1):
        raise UsageError(f"{model}: there is no such file or folder")
    if path.is_dir() and not any(entry.is_file() for entry in path.iterdir()):
        raise UsageError(
            f"{model}: a folder without files", hint="a checkpoint has safetensors or torch files, a config config.json"
        )


def _write(path: Path, text: str) -> None:
    from accelkit.contract import codec
    from accelkit.host.errors import UsageError

    try:
        codec.write_text(path, text)
    except OSError as error:
        raise UsageError(f"--svg {path}: {error.strerror or error}") from error


def _total(needs: "Needs") -> str:
    from accelkit.contract.placement import show

    return show(needs.weights)


def _print(model: str, found: "Anatomy", rows: "list[Needs]", shares: "list[Share]") -> None:
    from accelkit.contract.placement import show
    from accelkit.host import render
    from accelkit.host.estimate import drawing

    guess = "; layers and their order are taken from names" if found.guessed else ""
    render.out(f"{render.on_a_line(model)}: {found.parameters:,} parameters ({found.source}{guess})\n")
    wide = max(len(show(row.largest_layer_bytes)) for row in rows)
    headers = ("DTYPE", "TOTAL", "LARGEST LAYER", "INFERENCE", "TRAINING (ADAM)")
    cells = [
        (
            row.dtype,
            show(row.weights),
            f"{show(row.largest_layer_bytes):<{wide}}  {row.largest_layer}",
            show(row.inference),
            "-" if row.training is None else show(row.training),
        )
        for row in rows
    ]
    render.out(render.table(headers, cells))
    render.out(f"\nDEVICE MAP, {rows[0].dtype}")
    for line in drawing.bars(shares):
        render.out(line)


def _as_json(model: str, found: "Anatomy", rows: "list[Needs]", shares: "list[Share]", notes: dict[str, str]) -> str:
    import json

    from accelkit.contract import codec

    body: dict[str, Any] = {
        "model": model,
        "source": found.source,
        "guessed": found.guessed,
        "parameters": found.parameters,
        "tensors": len(found.tensors),
        "needs": codec.to_dict(rows),
        "device_map": {name: share.device for share in shares for name, _ in share.units},
        "devices": codec.to_dict(shares),
        "reasons": notes,
    }
    return json.dumps(body, indent=2)
