"""Reading kit.yaml so that every key knows its line, and nothing is guessed: no duplicate keys, no aliases, no tags."""

import os
from pathlib import Path

import yaml

from accelkit.host.config.located import Located
from accelkit.host.config.problems import Problem


def read(path: Path, kind: str, problems: list[Problem]) -> dict[str, Located]:
    """Dotted key -> located value of every leaf. What cannot be read is added to `problems`."""
    shown = _shown(path)
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except OSError as error:
        problems.append(Problem(where=shown, key="", what=f"cannot be read: {error.strerror}", allowed=""))
        return {}
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problems.append(Problem(where=f"{shown}:{line}", key="", what=f"is not YAML: {error.problem}", allowed=""))
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
            value = yaml.SafeLoader("")  # a constructor alone: the nodes are already there
            found[key] = Located(value=value.construct_object(value_node, deep=True), kind=kind, where=where)


def _shown(path: Path) -> str:
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)
