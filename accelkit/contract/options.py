"""What a setting is, to people: its help, its flag, its syntax. Settings are fields of dataclasses with this as metadata."""

import dataclasses
from typing import Any

from accelkit.contract.data import data


@data
class Option:
    """How a field shows outside: on the command line, in the environment, in the wizard."""

    help: str
    """One sentence, units and special values included."""
    metavar: str | None = None
    flags: tuple[str, ...] = ()
    """Flags; empty: `--` + the field's name with hyphens."""
    syntax: str | None = None
    """Name of the text syntax that the value must have (size, duration, cpus, gpus, ulimit, user, mount, env, secret, port)."""
    repeat: bool = False
    """The flag may be given many times (list fields)."""
    strategies: tuple[str, ...] = ()
    """Strategies on which it has an effect; empty: it is no option of a strategy."""
    question: str = ""
    """What the wizard asks; empty: nothing."""
    reply: str = ""
    """The answer that it proposes; empty: leave the setting open."""
    needs: tuple[str, tuple[str, ...]] | None = None
    """Another field, and its values with which this one has an effect."""


def option(default: Any, help: str, **more: Any) -> Any:  # noqa: A002  (the word that typer and argparse use)
    """A dataclass field with its :class:`Option` as metadata."""
    metadata = {"option": Option(help=help, **more)}
    if isinstance(default, (list, dict)):
        kind = type(default)
        return dataclasses.field(default_factory=lambda: kind(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def options(section: type) -> dict[str, tuple["dataclasses.Field[Any]", Option]]:
    """Field name -> (field, its Option) of a section class, in order; fields without an Option (sections) are left out."""
    return {f.name: (f, f.metadata["option"]) for f in dataclasses.fields(section) if "option" in f.metadata}


def variable_of(name: str) -> str:
    """The environment variable of a field: KIT_ + its name in capitals."""
    return f"KIT_{name.upper()}"
