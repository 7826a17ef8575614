"""Reading and changing the process's environment, for scripts. The library itself reads its own in `env`."""

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from accelkit.runtime.everyday import str_to_bool


def parse_flag_from_env(key: str, default: bool = False) -> bool:
    """Whether a variable says yes. Raises ValueError for a text that says neither yes nor no."""
    return bool(str_to_bool(os.environ.get(key, str(default)), to_bool=True))


def parse_choice_from_env(key: str, default: str = "no") -> str:
    """A variable's text, or the default."""
    return os.environ.get(key, default)


def get_int_from_env(env_keys: Sequence[str], default: int) -> int:
    """The first of several variables that holds a number of at least 0, or the default."""
    for key in env_keys:
        value = int(os.environ.get(key, "-1"))
        if value >= 0:
            return value
    return default


def convert_dict_to_env_variables(current_env: Mapping[str, Any]) -> list[str]:
    """`NAME=value` of each entry; what no shell would take as it is (`;`, blanks, `<`, `>`, nothing) is left out, with a warning."""
    made = []
    for name, value in current_env.items():
        if not str(value) or any(odd in f"{name}{value}" for odd in ";\n<> "):
            warnings.warn(f"the variable {name} is left out: its value {str(value)!r} is no plain word", stacklevel=2)
        else:
            made.append(f"{name}={value}")
    return made


@contextmanager
def patch_environment(**kwargs: Any) -> Iterator[None]:
    """A block in which variables (names in upper case) have other values; afterwards they are what they were."""
    names = [name.upper() for name in kwargs]
    before = {name: os.environ.get(name) for name in names}
    os.environ.update({name: str(value) for name, value in zip(names, kwargs.values(), strict=True)})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def provide(**kwargs: Any) -> None:
    """Set variables (names in upper case) that another library reads, where they are not set."""
    for name, value in kwargs.items():
        os.environ.setdefault(name.upper(), str(value))


@contextmanager
def clear_environment() -> Iterator[None]:
    """A block in which the environment is empty; afterwards it is what it was."""
    before = os.environ.copy()
    os.environ.clear()
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
