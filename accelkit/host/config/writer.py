"""Writing kit.yaml: every key with its help as a comment; what is not set is there too, commented out."""

import dataclasses
import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from accelkit.host.config import model
from accelkit.host.config.model import BuildConfig, RunConfig

_HEAD = """\
# kit.yaml, written by `kit config`. Every key can also be a flag of `kit run` or `kit build`, or a variable KIT_NAME.
# Order: flags > variables > --config-file > ./kit.yaml > your default > built-in defaults. `kit config show` says which won.
"""


def render(values: Mapping[str, object]) -> str:
    """The file's text; `values`: dotted key -> value of what is set."""
    lines = [_HEAD, f"version: {model.CONFIG_VERSION}"]
    for name, section in (("run", RunConfig), ("build", BuildConfig)):
        lines += ["", f"# {(section.__doc__ or '').splitlines()[0]}", f"{name}:", *_section(name, section, values)]
    return "\n".join(lines) + "\n"


def _section(name: str, section: type, values: Mapping[str, object]) -> Iterator[str]:
    some = False
    for field, described in model.options(section).values():
        yield from textwrap.wrap(described.help, width=116, initial_indent="  # ", subsequent_indent="  # ")
        key = f"{name}.{field.name}"
        if key in values:
            some = True
            yield f"  {field.name}: {_yaml(values[key])}"
        else:
            yield f"  # {field.name}: {_yaml(default_of(field))}"
    if not some:
        yield "  {}"


def default_of(field: "dataclasses.Field[Any]") -> object:
    """A field's default value."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _yaml(value: object) -> str:
    """A scalar or list in flow style: JSON is YAML."""
    return json.dumps(value, ensure_ascii=False)
