"""What starting up costs: help texts and a bare import load nothing heavy."""

import json
import subprocess
import sys

import pytest

from tests.architecture import rules

LOADED_BY = """
import json, sys
try:
    exec(sys.argv.pop(1))
except SystemExit as done:
    assert not done.code, f"exit code {done.code}"
finally:
    print("\\n" + json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""
RUN_KIT = "from accelkit.host.cli.main import main; sys.argv[0] = 'kit'; main()"


def loaded_by(code: str, *arguments: str) -> set[str]:
    """Top-level packages loaded in a fresh interpreter after running a line of code there."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED_BY, code, *arguments],
        cwd=rules.ROOT,
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def commands() -> list[str]:
    """The commands of `kit`, from its own table."""
    from accelkit.host.cli.main import COMMANDS

    return list(COMMANDS)


def test_importing_the_package_loads_nothing() -> None:
    """`import accelkit` loads no library and none of its own packages' dependencies."""
    heavy = loaded_by("import accelkit") & (rules.HEAVY_FOR_HELP | {"typer", "yaml", "safetensors"})

    assert heavy == set()


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], *([name, "--help"] for name in commands())], ids=" ".join
)
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    """`kit --help`, `kit --version` and each command's help answer without torch, docker, pydantic or rich."""
    heavy = loaded_by(RUN_KIT, *arguments) & rules.HEAVY_FOR_HELP

    assert heavy == set()
