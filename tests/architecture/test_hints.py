"""What kit tells people to type exists."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import typer

from accelkit.host.cli.main import COMMANDS, app
from tests.architecture import rules

FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")


@cache
def root() -> Any:
    """The `kit` command as typer makes it."""
    return typer.main.get_command(app)


def flags_of(command: Any) -> set[str]:
    """Every flag of a command."""
    return {flag for parameter in command.params for flag in (*parameter.opts, *parameter.secondary_opts)}


def below(command: Any) -> Iterator[Any]:
    """A command and its sub-commands."""
    yield command
    if hasattr(command, "list_commands"):
        for name in command.list_commands(None):
            yield from below(command.get_command(None, name))


def named(words: list[str]) -> Any:
    """The command that these words name after `kit`. Raises LookupError for one that is not there."""
    found = root()
    for word in words:
        if not hasattr(found, "list_commands"):
            break
        following = found.get_command(None, word)
        if following is None and (found is root() or not found.invoke_without_command):
            raise LookupError(word)
        found = following or found
    return found


def hints() -> list[tuple[str, str]]:
    """(place, text) of every `hint=` in the host's source; what is filled in reads {}."""
    found = []
    for source in rules.python_sources("accelkit/host/"):
        for node in ast.walk(source.tree):
            if isinstance(node, ast.keyword) and node.arg == "hint":
                found += [(source.at(node.value), text) for text in texts(node.value)]
    return found


def texts(node: ast.expr) -> Iterator[str]:
    """The texts that an expression may be."""
    for part in ast.walk(node):
        if isinstance(part, ast.JoinedStr):
            yield "".join(v.value if isinstance(v, ast.Constant) else "{}" for v in part.values)
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


OF_KIT = [(place, text) for place, text in hints() if "docker" not in text and "pip " not in text]
"""Hints that name no other program, whose flags would be its own."""


@pytest.mark.parametrize(("place", "text"), OF_KIT, ids=lambda part: part if ".py:" in part else "")
def test_commands_and_flags_of_hints_exist(place: str, text: str) -> None:
    """`kit COMMAND` is a command, and each `--flag` after it one of that command's; a flag before any is one of some command's."""
    before, *mentions = re.split(r"\bkit (?=[a-z])", text)
    missing = set(FLAG.findall(before)) - {flag for command in below(root()) for flag in flags_of(command)}
    for mention in mentions:
        words = re.match(r"[a-z ]*", mention)
        if words is None or words[0].split()[0] not in COMMANDS:
            continue  # kit as a word of a sentence
        command = named(words[0].split()[:2])
        missing |= set(FLAG.findall(mention)) - flags_of(command)

    assert not missing, f"{place}: {text!r} names {', '.join(sorted(missing))}, which is not there"
