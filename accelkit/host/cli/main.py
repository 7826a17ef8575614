"""The entry point of `kit`: a table of commands, each imported only when it is named.

Nothing heavy may be imported here or at the top of a command's module (typer and the standard library alone): `kit --help` must
answer at once. Bodies import what they need.
"""

import os
import sys
from importlib import import_module
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from accelkit import __version__
from accelkit.contract import names
from accelkit.host.cli.console import console
from accelkit.host.errors import KitError, UsageError

COMMANDS: dict[str, tuple[str, str]] = {
    "config": ("config", "Write, show and check kit.yaml."),
    "images": ("images", "List the images, their variants, and what fits this machine."),
    "build": ("build", "Build an image (cpu, cuda, tpu, ...)."),
    "lock": ("lock", "Write kit.lock: every file of the images, by version and digest."),
    "bundle": ("bundle", "Write all that an image is made of into a folder, for a machine without a network."),
    "run": ("run", "Run a script on every rank of one or more nodes."),
    "launch": ("run", "The same as run."),
    "test": ("test", "Check this topology with the self-test: collectives, data, training, failures."),
    "reproduce": ("reproduce", "Run a recorded run again, and compare."),
    "runs": ("runs", "List, show, compare, follow, stop and clean runs."),
    "plan": ("plan", "Tell the memory that a model takes on each rank, under every strategy."),
    "merge-weights": ("merge", "Turn a sharded checkpoint into one safetensors model."),
    "estimate": ("estimate", "Tell what a model needs and what fits where, without loading it."),
    "shell": ("shell", "Open a shell in the image, with a run's mounts."),
    "doctor": ("doctor", "Check what runs and builds need here, each with its remedy."),
    "env": ("env", "Print what to paste into a bug report."),
}
"""Command -> (module in accelkit.host.cli whose `app` is its typer.Typer, one line for `kit --help`)."""


class LazyGroup(TyperGroup):
    """A group whose commands come from COMMANDS and are imported when one is used."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command's own object; None for a name that is not there."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"accelkit.host.cli.{COMMANDS[cmd_name][0]}")
        command = typer.main.get_command(module.app)
        command.name = cmd_name
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is named first. One that is not there is told with the nearest that is."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, n=1)
            ctx.fail(f"No such command {args[0]!r}.{f' Did you mean {near[0]!r}?' if near else ''}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The list of commands, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


app = typer.Typer(
    cls=LazyGroup,
    name="kit",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"kit {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(  # noqa: ARG001  (its callback acts)
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
    quiet: int = typer.Option(
        0, "-q", "--quiet", count=True, show_default=False, help="Print only what the ranks print, and errors."
    ),
    verbose: int = typer.Option(
        0,
        "-v",
        "--verbose",
        count=True,
        show_default=False,
        help="Print more; with -vv also tracebacks of kit itself.",
    ),
) -> None:
    """Containerized, reproducible PyTorch runs: one script, from laptop to cluster."""
    from accelkit.host import render

    render.set_verbosity(verbose - quiet)


def main() -> NoReturn:
    """Run `kit` and exit; errors of the host side become one message and their exit code."""
    from accelkit.host import render

    try:
        _check_folder()
        sys.exit(app(prog_name="kit"))
    except KitError as error:
        render.error(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(names.EXIT_INTERRUPTED)
    except Exception as error:  # noqa: BLE001  (the outer edge: kit fails with a message and its own code)
        render.error(_unforeseen(error))
        sys.exit(names.EXIT_KIT)


def _check_folder() -> None:
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise UsageError("the current folder is not there any more", hint="cd to one that is") from error


def _unforeseen(error: Exception) -> KitError:
    """What nobody has foreseen is kit's failure, never the script's: a message, and 125 rather than Python's 1."""
    from accelkit.host import render

    words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    made = KitError(words, hint=None if render.verbosity() > 1 else "kit -vv ... shows where in kit it happened")
    made.__cause__ = error
    return made


if __name__ == "__main__":
    console()
