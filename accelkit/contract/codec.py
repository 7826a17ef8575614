"""Frozen dataclasses to JSON and back, strictly: an unknown field, a missing one or a wrong type is an error that names it.

Knows what the contract uses: str, int, float, bool, None, Literal, optional, tuple[X, ...], list[X], dict[str, X], nested dataclasses, Any.
"""

import contextlib
import dataclasses
import functools
import json
import os
import stat
import time
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class CodecError(ValueError):
    """A document that does not fit its type; the message starts with the dotted path of the field."""


def to_dict(value: Any) -> Any:
    """`value` (dataclasses, mappings, sequences, scalars) as plain JSON-ready data."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_dict(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_dict(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_dict(v) for v in value]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise CodecError(f"cannot write a value of type {type(value).__name__}")


def from_dict(kind: type[T], data: Any) -> T:
    """Plain data as an instance of the dataclass `kind`. Raises CodecError naming the field that does not fit."""
    return typing.cast("T", _read(kind, data, ""))


def dumps(value: Any) -> str:
    """`value` as readable JSON (two-space indent, field order kept, final newline)."""
    data = to_dict(value)
    text = json.dumps(data, indent=2, ensure_ascii=False)
    if not _is_text(text):  # undecodable bytes of a name or an argument: escaped, and so they come back as they were
        text = json.dumps(data, indent=2)
    return text + "\n"


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def loads(kind: type[T], text: str) -> T:
    """The inverse of :func:`dumps`. Raises CodecError, also for text that is not JSON."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise CodecError(f"not JSON: {error}") from error
    return from_dict(kind, data)


def write_text(path: str | os.PathLike[str], text: str, *, durable: bool = False, mode: int | None = None) -> None:
    """Write `text` to a temporary name in the same folder and rename it over `path`.

    `mode`: permissions; None: those of the file that is replaced, and for a new one what the caller's umask gives.
    A reader, and whoever is killed meanwhile, sees the old content or the new one, never a part. `durable`: flush it to the disk
    first, so that this holds for a loss of power as well.
    """
    path = os.fspath(path)
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{os.getpid()}-{time.monotonic_ns()}")
    try:
        with open(temporary, "x", encoding="utf-8", errors="surrogateescape") as file:
            if (permissions := _mode_of(path) if mode is None else mode) is not None:
                os.fchmod(file.fileno(), permissions)
            file.write(text)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _mode_of(path: str) -> int | None:
    """Permissions of a file; None where there is none, or something else."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return stat.S_IMODE(found.st_mode) if stat.S_ISREG(found.st_mode) else None


def write(path: str | os.PathLike[str], value: Any, *, durable: bool = False, mode: int | None = None) -> None:
    """Write a dataclass as JSON, atomically; see :func:`write_text`."""
    write_text(path, dumps(value), durable=durable, mode=mode)


def read(kind: type[T], path: str | os.PathLike[str]) -> T:
    """Read a dataclass back. Raises CodecError with the path in its message, and FileNotFoundError."""
    try:
        with open(path, encoding="utf-8") as file:
            return loads(kind, file.read())
    except CodecError as error:
        raise CodecError(f"{path}: {error}") from error


def _read(kind: Any, data: Any, where: str) -> Any:
    if kind is Any:
        return data
    origin = typing.get_origin(kind)
    if origin in _READERS:
        return _READERS[origin](kind, data, where)
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(typing.cast("type", kind), data, where)
    return _read_scalar(kind, data, where)


def _read_dataclass(kind: type, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise _misfit(where, "an object", data)
    fields = {f.name: f for f in dataclasses.fields(kind)}
    unknown = sorted(set(data) - set(fields))
    if unknown:
        raise CodecError(f"{_join(where, unknown[0])}: unknown field of {kind.__name__}")
    hints = _hints(kind)
    missing = [
        name
        for name, f in fields.items()
        if name not in data and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise CodecError(f"{_join(where, missing[0])}: missing field of {kind.__name__}")
    return kind(**{name: _read(hints[name], value, _join(where, name)) for name, value in data.items()})


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _read_union(kind: Any, data: Any, where: str) -> Any:
    choices = typing.get_args(kind)
    if data is None and type(None) in choices:
        return None
    problems: list[CodecError] = []
    for choice in choices:
        if choice is type(None):
            continue
        try:
            return _read(choice, data, where)
        except CodecError as error:
            problems.append(error)
    raise problems[0]


def _read_literal(kind: Any, data: Any, where: str) -> Any:
    allowed = typing.get_args(kind)
    if data not in allowed:
        raise _misfit(where, f"one of {', '.join(map(repr, allowed))}", data)
    return data


def _read_tuple(kind: Any, data: Any, where: str) -> Any:
    return tuple(_read_list(kind, data, where))


def _read_list(kind: Any, data: Any, where: str) -> Any:
    if not isinstance(data, (list, tuple)):
        raise _misfit(where, "a list", data)
    item = typing.get_args(kind)[0]
    return [_read(item, value, f"{where}[{index}]") for index, value in enumerate(data)]


def _read_mapping(kind: Any, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise _misfit(where, "an object", data)
    item = typing.get_args(kind)[1]
    return {key: _read(item, value, _join(where, key)) for key, value in data.items()}


def _read_scalar(kind: Any, data: Any, where: str) -> Any:
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if isinstance(data, bool) and kind is not bool:
        raise _misfit(where, kind.__name__, data)
    if not isinstance(data, kind):
        raise _misfit(where, kind.__name__, data)
    return data


def _misfit(where: str, wanted: str, data: Any) -> CodecError:
    return CodecError(f"{where or 'document'}: must be {wanted}, but is {data!r}")


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


_READERS: dict[Any, Callable[[Any, Any, str], Any]] = {
    typing.Union: _read_union,
    types.UnionType: _read_union,
    typing.Literal: _read_literal,
    tuple: _read_tuple,
    list: _read_list,
    dict: _read_mapping,
}
