"""Command-line options from the config model's fields: one declaration, no second list of flags.

Standard library and typer only, so that `--help` is instant.
"""

import inspect
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Optional

import typer

from accelkit.host.config import model

if TYPE_CHECKING:
    from accelkit.host.config.loading import Resolved

CONFIG_FILE: Final = typer.Option(
    None, "--config-file", metavar="FILE", help="Config file that overrules ./kit.yaml and yours.", show_default=False
)
"""The option that every command with a config has."""

SECTION_NAMES: Final[dict[type, str]] = {model.RunConfig: "run", model.BuildConfig: "build"}


def of(*sections: type, without: tuple[str, ...] = ()) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Extend a command by an option for every field of `sections`, but for the keys `without`, whose flags mean something else there.

    The command's own parameter `given` receives the options that were typed: dotted key -> value. It is no option itself.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        fields = {f"{SECTION_NAMES[s]}.{name}": (s, name) for s in sections for name in model.options(s)}
        fields = {key: field for key, field in fields.items() if key not in without}
        by_parameter = {key.replace(".", "_"): key for key in fields}

        def wrapped(**arguments: Any) -> Any:
            typed = {by_parameter[p]: arguments.pop(p) for p in by_parameter}
            given = {
                key: list(v) if isinstance(v, (list, tuple)) else v
                for key, v in typed.items()
                if v not in (None, [], ())
            }
            return command(**arguments, given=given)

        own = [p for p in inspect.signature(command).parameters.values() if p.name != "given"]
        extra = [_parameter(parameter, *fields[key]) for parameter, key in by_parameter.items()]
        hints = {n: h for n, h in typing.get_type_hints(command).items() if n != "given"}
        wrapped.__name__, wrapped.__doc__ = command.__name__, command.__doc__
        wrapped.__signature__ = inspect.Signature([*own, *extra])  # type: ignore[attr-defined]
        wrapped.__annotations__ = {**hints, **{p.name: p.annotation for p in extra}}
        return wrapped

    return decorate


def load(given: dict[str, object], config_file: Path | None) -> "Resolved":
    """The merged config of this process's folder and environment. Raises ConfigError with all problems."""
    from accelkit.host.config import loading
    from accelkit.host.launch import environment

    return loading.load(given=given, config_file=config_file, cwd=Path.cwd(), environ=environment.current())


def _parameter(parameter: str, section: type, name: str) -> inspect.Parameter:
    _, described = model.options(section)[name]
    kind = typing.get_type_hints(section)[name]
    flags = list(_flags(name, kind, described))
    text = f"{described.help} [{model.variable_of(name)}]"
    default = typer.Option(
        None, *flags, help=text, metavar=described.metavar or _metavar(kind, described), show_default=False
    )
    return inspect.Parameter(parameter, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=_annotation(kind))


def _flags(name: str, kind: Any, described: model.Option) -> Iterator[str]:
    for flag in model.flag_of(name, described):
        yield f"{flag}/--no-{flag.removeprefix('--')}" if _is_bool(kind) else flag


def _is_bool(kind: Any) -> bool:
    return bool in (kind, *typing.get_args(kind))


def _annotation(kind: Any) -> Any:
    """What typer is told: lists repeat, booleans and numbers are themselves, everything else is text that loading checks."""
    if typing.get_origin(kind) is list:
        return Optional[list[str]]  # noqa: UP045  (typer reads the annotation at run time, on Python 3.10 too)
    if _is_bool(kind):
        return Optional[bool]  # noqa: UP045
    if float in typing.get_args(kind):
        return Optional[float]  # noqa: UP045
    return Optional[int] if int in (kind, *typing.get_args(kind)) else Optional[str]  # noqa: UP045


def _metavar(kind: Any, described: model.Option) -> str | None:
    if _is_bool(kind) or {int, float} & {kind, *typing.get_args(kind)}:
        return None
    choices = [
        a for k in (kind, *typing.get_args(kind)) if typing.get_origin(k) is typing.Literal for a in typing.get_args(k)
    ]
    return "|".join(choices) if choices else (described.syntax or "text").upper()
