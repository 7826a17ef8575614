"""Who may touch the world: the environment, other processes, and errors of every kind."""

import ast
from collections.abc import Callable, Iterator

import pytest

from tests.architecture import rules

ENVIRONMENT_NAMES = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
PROCESS_MODULES = {"subprocess", "multiprocessing", "pty"}
PROCESS_PREFIXES = ("exec", "spawn", "posix_spawn", "fork", "system", "popen")
EVERYTHING = {"Exception", "BaseException"}


def names_taken_from_os(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Every use of a name of the module `os`: `os.name`, and `from os import name`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            yield node, node.attr
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            yield from ((node, alias.name) for alias in node.names)


def environment_reads(source: rules.Source) -> Iterator[ast.AST]:
    """Places that read or write the environment."""
    yield from (node for node, name in names_taken_from_os(source.tree) if name in ENVIRONMENT_NAMES)


def process_starts(source: rules.Source) -> Iterator[ast.AST]:
    """Places that start, become or fork a process."""
    yield from (node for node, name in names_taken_from_os(source.tree) if name.startswith(PROCESS_PREFIXES))
    for node, name in rules.imported_names(source):
        if name.partition(".")[0] in PROCESS_MODULES:
            yield node
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("create_subprocess_"):
            yield node


def broad_handlers(source: rules.Source) -> Iterator[ast.AST]:
    """Handlers that catch everything and do not raise it again at their end."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ExceptHandler) and catches_everything(node) and not ends_by_raising(node):
            yield node


def catches_everything(handler: ast.ExceptHandler) -> bool:
    """`except:`, `except Exception`, or either in a tuple."""
    if handler.type is None:
        return True
    return any(isinstance(node, ast.Name) and node.id in EVERYTHING for node in ast.walk(handler.type))


def ends_by_raising(handler: ast.ExceptHandler) -> bool:
    """Whether the last statement of a handler is a bare `raise`."""
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


RULES: dict[str, tuple[Callable[[rules.Source], Iterator[ast.AST]], dict[str, str]]] = {
    "READS_ENVIRONMENT": (environment_reads, rules.READS_ENVIRONMENT),
    "STARTS_PROCESSES": (process_starts, rules.STARTS_PROCESSES),
    "CATCHES_EVERYTHING": (broad_handlers, rules.CATCHES_EVERYTHING),
}


@pytest.mark.parametrize("rule", RULES)
def test_only_listed_files_do_it(rule: str) -> None:
    """The environment, processes and broad handlers are found in the files that rules.py lists, and nowhere else."""
    find, listed = RULES[rule]
    problems = [
        source.at(node)
        for source in rules.python_sources("accelkit/")
        if not source.is_listed(listed)
        for node in find(source)
    ]

    assert not problems, rules.complain(problems, f"only files listed in rules.{rule} may")


@pytest.mark.parametrize("rule", RULES)
def test_a_list_names_no_file_that_does_not_need_it(rule: str) -> None:
    """An entry of rules.py whose file is there but does not do what it is listed for is removed."""
    find, listed = RULES[rule]
    idle = [
        entry
        for entry in listed
        if (sources := rules.python_sources(entry)) and not any(node for source in sources for node in find(source))
    ]

    assert not idle, rules.complain(idle, f"entries of rules.{rule} that are not needed")
