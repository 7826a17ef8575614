"""`kit merge-weights`: a sharded checkpoint as one model."""

import sys
from pathlib import Path

import typer

app = typer.Typer(rich_markup_mode=None)


@app.command(no_args_is_help=True)
def merge(
    checkpoint: Path = typer.Argument(
        ..., metavar="CHECKPOINT", help="What save_state wrote, or the folder of its shards."
    ),
    output: Path = typer.Argument(..., metavar="OUTPUT", help="Folder for model.safetensors."),
    index: int = typer.Option(0, "--index", metavar="N", help="Which model of several."),
    max_shard_size: str = typer.Option("10GB", "--max-shard-size", metavar="SIZE", help="Largest file."),
    bin_: bool = typer.Option(False, "--bin", help="Write torch's own format instead of safetensors."),
    remove: bool = typer.Option(False, "--remove", help="Remove the checkpoint when the model is complete."),
) -> None:
    """Turn a sharded checkpoint into one model for others to read; needs torch in this interpreter."""
    from accelkit.host import process, render
    from accelkit.host.errors import KitError, UsageError

    words = ["--index", str(index), "--max-shard-size", max_shard_size, *(["--bin"] * bin_), *(["--remove"] * remove)]
    argv = [sys.executable, "-m", "accelkit.runtime.checkpoint.merging", str(checkpoint), str(output), *words]
    done = process.run(argv)
    text = done.stderr.strip()
    if done.code == UsageError.exit_code:
        raise UsageError(text)
    if done.code != 0:
        raise KitError(f"merge-weights: exit code {done.code}: {text[-2000:]}")
    render.out(f"wrote {output}")
