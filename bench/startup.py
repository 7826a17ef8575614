"""How long commands and imports take to answer, beside Accelerate's and a bare Typer app.

    python bench/startup.py [ROUNDS]

Every figure is a fresh process; a round runs them all once.
"""

import sys

from measure import BIN, Spread, command, headline, interleave, paired, show, timed

TYPER = "import typer\napp = typer.Typer()\n@app.command()\ndef a(x: int = 1): 'a'\n@app.command()\ndef b(): 'b'\napp()"
PYTHON = [sys.executable, "-c"]
SIDES = {
    "python": [*PYTHON, "pass"],
    "typer": [*PYTHON, TYPER, "--help"],
    "import torch": [*PYTHON, "import torch"],
    "import accelkit": [*PYTHON, "import accelkit"],
    "import torch, accelkit": [*PYTHON, "import torch; import accelkit"],
    "import torch, Accelerator": [*PYTHON, "import torch; from accelkit import Accelerator"],
    "kit --help": [BIN / "kit", "--help"],
    "kit run --help": [BIN / "kit", "run", "--help"],
    "kit config --help": [BIN / "kit", "config", "--help"],
    "accelerate --help": [BIN / "accelerate", "--help"],
    "accelerate launch --help": [BIN / "accelerate", "launch", "--help"],
    "accelerate config --help": [BIN / "accelerate", "config", "--help"],
}
PAIRS = (
    ("kit --help", "accelerate --help", 0.10),
    ("kit run --help", "accelerate launch --help", 0.10),
    ("kit config --help", "accelerate config --help", 0.10),
    ("kit --help", "typer", 1.5),
    ("import torch, accelkit", "import torch", 1.03),
    ("import torch, Accelerator", "import torch", 1.20),
)


def main() -> None:
    """Measure and print."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    headline("starting up")
    samples = interleave({name: timed(lambda argv=argv: command(argv)) for name, argv in SIDES.items()}, rounds)  # type: ignore[misc]
    for name, seconds in samples.items():
        show(name, Spread.of(seconds).times(1e3), " ms")
    extra = [a - b for a, b in zip(samples["import accelkit"], samples["python"], strict=True)]
    show("import accelkit, over a bare interpreter", Spread.of(extra).times(1e3), " ms", 5)
    for ours, theirs, goal in PAIRS:
        show(f"{ours} / {theirs}", paired(samples[ours], samples[theirs]), "", goal)


if __name__ == "__main__":
    main()
