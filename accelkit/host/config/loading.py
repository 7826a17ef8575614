"""Finding and merging the config: flags > KIT_* variables > --config-file > ./kit.yaml > the user's default > defaults."""

import contextlib
import dataclasses
import difflib
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from accelkit.contract import names
from accelkit.contract.data import data
from accelkit.host import paths
from accelkit.host.config import model, syntax
from accelkit.host.config.located import Located
from accelkit.host.config.model import BuildConfig, Config, RunConfig
from accelkit.host.config.problems import ConfigError, Problem

SECTIONS: Final[dict[str, type]] = {"run": RunConfig, "build": BuildConfig}
_OF_THE_RUNTIME: Final = {
    names.ENV_SPEC, names.ENV_RUN_ID, names.ENV_NODE_NAME, names.ENV_IMAGE_DIGEST, names.ENV_OUTPUT_DIR,
    names.ENV_METRICS_FILE, names.ENV_SECRETS_DIR,
}  # fmt: skip
_WORDS: Final[dict[type, str]] = {
    int: "a whole number",
    float: "a number",
    str: "a text (in quotes where it looks like a number)",
    bool: "true or false",
    type(None): "nothing",
}
_LEAST: Final = {"nodes": 1, "procs_per_node": 1, "grad_accum_steps": 1, "threads": 1, "port": 1, "seed": 0}
_MOST: Final = {"port": 65535, "seed": 2**32 - 1}


@data
class Origin:
    """Where a value came from."""

    kind: str
    """flag, variable, file, project, user or default."""
    text: str
    """For a person: --nodes, KIT_NODES, kit.yaml:7, default."""


@data
class Resolved:
    """A whole config, and the origin of each of its values by dotted key."""

    config: Config
    origins: dict[str, Origin]

    def values(self) -> dict[str, tuple[Any, Origin]]:
        """Dotted key -> value and origin, in the model's order."""
        found = {}
        for section in SECTIONS:
            part = getattr(self.config, section)
            for name in model.options(type(part)):
                key = f"{section}.{name}"
                found[key] = (getattr(part, name), self.origins.get(key, _DEFAULT))
        return found


_DEFAULT: Final = Origin(kind="default", text="default")


def load(*, given: Mapping[str, object], config_file: Path | None, cwd: Path, environ: Mapping[str, str]) -> Resolved:
    """Merge all sources. `given`: dotted key -> value of the flags that were typed. Raises ConfigError with all problems."""
    problems: list[Problem] = []
    values: dict[str, Located] = {}
    for kind, path in _files(config_file, cwd, environ):
        values |= _from_file(kind, path, problems)
    values |= _from_environment(environ, problems)
    return _resolved(values | _typed(given), problems)


def _typed(given: Mapping[str, object]) -> dict[str, Located]:
    """Values as flags give them; by dotted key."""
    found = {}
    for key, value in given.items():
        section, _, name = key.partition(".")
        flag = model.flag_of(name, model.options(SECTIONS[section])[name][1])[0]
        found[key] = Located(value=value, kind="flag", where=flag)
    return found


def _resolved(values: Mapping[str, Located], problems: list[Problem]) -> Resolved:
    """The config of these values. Raises ConfigError with their problems and those found before."""
    checked = {key: v for key, v in values.items() if _fits(key, v, problems)}
    config = _build(checked)
    from accelkit.host.config.checks import contradictions

    origins = {key: Origin(kind=v.kind, text=v.where) for key, v in checked.items()}
    problems += contradictions(config, origins)
    if problems:
        raise ConfigError(problems)
    return Resolved(config=config, origins=origins)


def check_file(path: Path) -> list[Problem]:
    """Every problem of one file alone."""
    problems: list[Problem] = []
    values = _from_file("file", path, problems)
    checked = {key: v for key, v in values.items() if _fits(key, v, problems)}
    from accelkit.host.config.checks import contradictions

    origins = {key: Origin(kind=v.kind, text=v.where) for key, v in checked.items()}
    return problems + contradictions(_build(checked), origins)


def value_of(key: str, text: str) -> tuple[object, str | None]:
    """A text as the value of `key`, and what is wrong with it (None: nothing)."""
    problems: list[Problem] = []
    value = _from_text(_type_of(key), text)
    _fits(key, Located(value=value, kind="flag", where=key), problems)
    return value, str(problems[0]) if problems else None


def check_values(values: Mapping[str, object]) -> Config:
    """The config of these values alone, by dotted key. Raises ConfigError with all problems, told as flags'."""
    return _resolved(_typed(values), []).config


def _files(config_file: Path | None, cwd: Path, environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """From the weakest to the strongest; those that need not exist only where they do."""
    named = config_file or (Path(environ["KIT_CONFIG_FILE"]) if environ.get("KIT_CONFIG_FILE") else None)
    if paths.user_config().is_file():
        yield "user", paths.user_config()
    if (cwd / "kit.yaml").is_file():
        yield "project", cwd / "kit.yaml"
    if named is not None:
        yield "file", cwd / named


def _from_file(kind: str, path: Path, problems: list[Problem]) -> dict[str, Located]:
    from accelkit.host.config.yamlfile import read

    found: dict[str, Located] = {}
    for key, located in read(path, kind, problems).items():
        if key == "version":
            _check_version(located, problems)
        elif _known(key, located, problems):
            found[key] = located
    return found


def _check_version(located: Located, problems: list[Problem]) -> None:
    if located.value != model.CONFIG_VERSION:
        problems.append(
            Problem(where=located.where, key="version", what=f"is {located.value!r}", allowed=str(model.CONFIG_VERSION))
        )


def _known(key: str, located: Located, problems: list[Problem]) -> bool:
    section, _, name = key.partition(".")
    known = [f"{s}.{n}" for s, kind in SECTIONS.items() for n in model.options(kind)]
    if key in known:
        return True
    if section in SECTIONS and not name:
        if located.value not in (None, {}):
            problems.append(Problem(where=located.where, key=key, what="is not a mapping", allowed="keys and values"))
        return False
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5) or difflib.get_close_matches(
        key.rpartition(".")[2], [k.partition(".")[2] for k in known], n=1, cutoff=0.6
    )
    hint = f"did you mean {near[0]}?" if near else f"kit config schema lists the keys of {', '.join(SECTIONS)}"
    problems.append(Problem(where=located.where, key=key, what="is unknown", allowed=hint))
    return False


def _from_environment(environ: Mapping[str, str], problems: list[Problem]) -> dict[str, Located]:
    by_variable = {model.variable_of(n): f"{s}.{n}" for s, kind in SECTIONS.items() for n in model.options(kind)}
    found = {}
    for variable in sorted(
        v for v in environ if v.startswith("KIT_") and environ[v].strip()
    ):  # an empty one is not set
        if variable in by_variable:
            key = by_variable[variable]
            value = _from_text(_type_of(key), environ[variable])
            found[key] = Located(value=value, kind="variable", where=variable)
        elif variable not in _OF_THE_RUNTIME and (
            near := difflib.get_close_matches(variable, by_variable, n=1, cutoff=0.85)
        ):
            problems.append(Problem(where=variable, key="", what="is unknown", allowed=f"did you mean {near[0]}?"))
    return found


def _type_of(key: str) -> Any:
    section, _, name = key.partition(".")
    return typing.get_type_hints(SECTIONS[section])[name]


def _from_text(kind: Any, text: str) -> object:
    """A variable's text as the field's type: lists are comma-separated, booleans are 1/0, true/false, yes/no, on/off."""
    if typing.get_origin(kind) is list:
        return [part.strip() for part in text.split(",") if part.strip()]
    if bool in (kind, *typing.get_args(kind)):
        return {
            "1": True,
            "true": True,
            "yes": True,
            "on": True,
            "0": False,
            "false": False,
            "no": False,
            "off": False,
            "": False,
        }.get(text.strip().lower(), text)
    if int in (kind, *typing.get_args(kind)):
        with contextlib.suppress(ValueError):  # what is no number is told of as it stands
            return int(text)
    if float in typing.get_args(kind):
        with contextlib.suppress(ValueError):
            return float(text)
    return text


def _fits(key: str, located: Located, problems: list[Problem]) -> bool:
    """Whether a value has its field's type, range and syntax; a problem is noted when it has not."""
    section, _, name = key.partition(".")
    _, described = model.options(SECTIONS[section])[name]
    if (allowed := _misfit(_type_of(key), located.value)) is not None:
        problems.append(Problem(where=located.where, key=key, what=f"is {located.value!r}", allowed=allowed))
        return False
    value = located.value
    if (
        isinstance(value, int)
        and not isinstance(value, bool)
        and not _LEAST.get(name, value) <= value <= _MOST.get(name, value)
    ):
        allowed = f"a whole number from {_LEAST.get(name, 0)}" + (f" to {_MOST[name]}" if name in _MOST else "")
        problems.append(Problem(where=located.where, key=key, what=f"is {value}", allowed=allowed))
        return False
    before = len(problems)
    parse = syntax.PARSERS[described.syntax] if described.syntax else str
    for text in value if isinstance(value, list) else [value] if value is not None else []:
        try:
            parse(str(text))
        except ValueError as error:
            problems.append(Problem(where=located.where, key=key, what=str(error), allowed=""))
    return len(problems) == before


def _misfit(kind: Any, value: object) -> str | None:
    """What is allowed, in words, when `value` is not of type `kind`; None when it is."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        wrong = [_misfit(a, value) for a in args]
        return None if None in wrong else str(wrong[0])
    if origin is typing.Literal:
        return None if value in args else f"one of {', '.join(map(str, args))}"
    if origin is list:
        good = isinstance(value, list) and all(isinstance(v, str) for v in value)
        return None if good else "a list of texts"
    fits = type(value) is kind or (kind is float and type(value) is int)
    return None if fits else _WORDS[kind]


def _build(values: Mapping[str, Located]) -> Config:
    parts = {s: {k.partition(".")[2]: v.value for k, v in values.items() if k.startswith(f"{s}.")} for s in SECTIONS}
    return dataclasses.replace(Config(), **{s: kind(**parts[s]) for s, kind in SECTIONS.items()})
