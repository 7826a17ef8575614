"""Frozen data classes that cost little to define.

`dataclasses.dataclass` writes the source of five methods for every class and compiles it: 1 to 2 ms a class, which is a fifth of what
`kit run` needs until its ranks start. Here the methods are written once, and read the fields of the class; all else (fields,
defaults, inheritance, `dataclasses.replace` and `dataclasses.fields`) is that module's own.
"""

import dataclasses
from dataclasses import MISSING, Field, FrozenInstanceError, field
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

if TYPE_CHECKING:  # in the standard library from Python 3.11 on; only type checkers read it
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: object) -> Any:
        """What it says has no effect when the program runs."""
        return lambda decorator: decorator


T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def data(cls: type[T]) -> type[T]:
    """A frozen dataclass of `cls`, whose fields are given by keyword.

    Instances are compared and hashed by their fields, less those with `field(compare=False)`; `init`, `repr` and `hash` of a field mean
    nothing here. Setting or deleting an attribute raises `dataclasses.FrozenInstanceError`.
    """
    return _made(dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=True)(cls))


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def ordered_data(cls: type[T]) -> type[T]:
    """The same with fields that may be given by position."""
    return _made(dataclasses.dataclass(init=False, repr=False, eq=False)(cls))


def _made(cls: type[T]) -> type[T]:
    for name, method in _METHODS.items():
        if name not in cls.__dict__:
            setattr(cls, name, method)
    return cls


def _init(self: Any, *args: Any, **given: Any) -> None:
    fields: dict[str, Field[Any]] = self.__dataclass_fields__
    values = self.__dict__
    if args:
        _place(self, fields, args, given)
    for name, entry in fields.items():
        if name in given:
            values[name] = given.pop(name)
        elif entry.default is not MISSING:
            values[name] = entry.default
        elif entry.default_factory is not MISSING:
            values[name] = entry.default_factory()
        else:
            raise TypeError(f"{type(self).__name__}() misses {name!r}")
    if given:
        raise TypeError(f"{type(self).__name__}() has no {', '.join(map(repr, given))}")
    if (after := getattr(self, "__post_init__", None)) is not None:
        after()


def _place(self: Any, fields: dict[str, Field[Any]], args: tuple[Any, ...], given: dict[str, Any]) -> None:
    """Add values that were given by position to those that were given by name."""
    names = [name for name, entry in fields.items() if not entry.kw_only]
    if len(args) > len(names):
        raise TypeError(f"{type(self).__name__}() takes {len(names)} values by position, not {len(args)}")
    for name, value in zip(names, args, strict=False):
        if name in given:
            raise TypeError(f"{type(self).__name__}() got {name!r} twice")
        given[name] = value


def _key(self: Any) -> tuple[Any, ...]:
    values = self.__dict__
    return tuple([values[name] for name, entry in self.__dataclass_fields__.items() if entry.compare])


def _repr(self: Any) -> str:
    shown = ", ".join(f"{name}={self.__dict__[name]!r}" for name in self.__dataclass_fields__)
    return f"{type(self).__qualname__}({shown})"


def _eq(self: Any, other: Any) -> Any:
    return _key(self) == _key(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(_key(self))


def _setattr(self: Any, name: str, _: Any) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to {type(self).__name__}.{name}")


def _delattr(self: Any, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete {type(self).__name__}.{name}")


_METHODS = {
    "__init__": _init, "__repr__": _repr, "__eq__": _eq, "__hash__": _hash, "__setattr__": _setattr, "__delattr__": _delattr,
}  # fmt: skip
