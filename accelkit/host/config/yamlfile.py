"""Reading kit.yaml so that every key knows its line, and nothing is guessed: no duplicate keys, no aliases, no tags."""

import os
import re
from pathlib import Path

import yaml

from accelkit.host.config.located import Located
from accelkit.host.config.problems import Problem


class _Loader(yaml.SafeLoader):
    """YAML less what surprises: a date, a time of day and 010 are texts; whole numbers are decimal."""


_KEPT = ("bool", "null", "merge")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag.rpartition(":")[2] in _KEPT]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?(?:0|[1-9][0-9]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$"),
    list("-+.0123456789"),
)


def read(path: Path, kind: str, problems: list[Problem]) -> dict[str, Located]:
    """Dotted key -> located value of every leaf. What cannot be read is added to `problems`."""
    shown = _shown(path)
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=_Loader)
    except OSError as error:
        problems.append(Problem(where=shown, key="", what=f"cannot be read: {error.strerror}", allowed=""))
        return {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        problems.append(_not_yaml(shown, error))
        return {}
    found: dict[str, Located] = {}
    if root is None:
        return found
    if not isinstance(root, yaml.MappingNode):
        problems.append(
            Problem(
                where=f"{shown}:1", key="", what="is not a mapping", allowed="keys and values, see kit config schema"
            )
        )
        return {}
    _walk(root, "", shown, kind, found, problems)
    return found


def _not_yaml(shown: str, error: yaml.YAMLError | UnicodeDecodeError) -> Problem:
    if isinstance(error, yaml.MarkedYAMLError):
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        return Problem(where=f"{shown}:{line}", key="", what=f"is not YAML: {error.problem}", allowed="")
    if isinstance(error, UnicodeDecodeError):
        return Problem(where=shown, key="", what=f"is not UTF-8: {error.reason} at byte {error.start}", allowed="UTF-8")
    return Problem(where=shown, key="", what=f"is not YAML: {' '.join(str(error).split())}", allowed="")


def _walk(
    node: yaml.MappingNode, prefix: str, shown: str, kind: str, found: dict[str, Located], problems: list[Problem]
) -> None:
    seen: dict[str, int] = {}
    for key_node, value_node in node.value:
        name, line = str(key_node.value), key_node.start_mark.line + 1
        key = f"{prefix}.{name}" if prefix else name
        where = f"{shown}:{line}"
        if name in seen:
            problems.append(
                Problem(where=where, key=key, what=f"is there twice, also in line {seen[name]}", allowed="once")
            )
            continue
        seen[name] = line
        if isinstance(value_node, yaml.MappingNode) and value_node.value and not prefix:
            _walk(value_node, key, shown, kind, found, problems)
        else:
            maker = _Loader("")  # a constructor alone: the nodes are already there
            try:
                found[key] = Located(value=maker.construct_object(value_node, deep=True), kind=kind, where=where)
            except (yaml.MarkedYAMLError, ValueError) as error:  # a tag, or a value that is not what its tag says
                what = error.problem if isinstance(error, yaml.MarkedYAMLError) else str(error)
                problems.append(Problem(where=where, key=key, what=f"has no value: {what}", allowed="plain values"))


def _shown(path: Path) -> str:
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)
