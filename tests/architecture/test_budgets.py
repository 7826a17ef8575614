"""Budgets on the tail: no file, function or ladder of branches grows past what one reads in a sitting."""

import ast

from tests.architecture import rules

BRANCHES = (
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.BoolOp,
    ast.IfExp,
    ast.match_case,
)


def function_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the end, less the docstring."""
    total = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function, clean=False) is None:
        return total
    docstring = function.body[0]
    return total - ((docstring.end_lineno or docstring.lineno) - docstring.lineno + 1)


def count_branches(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Branching nodes of a function, less those of functions inside it (which have a budget of their own)."""
    count = 0
    pending = list(ast.iter_child_nodes(function))
    while pending:
        node = pending.pop()
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            count += isinstance(node, BRANCHES)
            pending.extend(ast.iter_child_nodes(node))
    return count


def test_files_stay_short() -> None:
    """No Python file is longer than the budget."""
    lengths = {source.path: source.text.count("\n") for source in rules.python_sources()}
    problems = [f"{path}: {lines} lines" for path, lines in lengths.items() if lines > rules.MAX_FILE_LINES]

    assert not problems, rules.complain(problems, f"a file has at most {rules.MAX_FILE_LINES} lines")


def test_functions_stay_short() -> None:
    """No function is longer than the budget, its docstring aside."""
    problems = [
        f"{source.at(function)}: {function.name} has {function_lines(function)} lines"
        for source in rules.python_sources()
        for function in rules.walk_functions(source.tree)
        if function_lines(function) > rules.MAX_FUNCTION_LINES
    ]

    assert not problems, rules.complain(problems, f"a function has at most {rules.MAX_FUNCTION_LINES} lines")


def test_functions_branch_little() -> None:
    """No function holds more branches than the budget."""
    problems = [
        f"{source.at(function)}: {function.name} has {count_branches(function)} branches"
        for source in rules.python_sources()
        for function in rules.walk_functions(source.tree)
        if count_branches(function) > rules.MAX_BRANCHES
    ]

    assert not problems, rules.complain(problems, f"a function has at most {rules.MAX_BRANCHES} branches")


def test_modules_are_named_after_what_they_hold() -> None:
    """No module or folder has a name that says nothing, but for the public one of the API family."""
    problems = [
        f"{source.path}: {rules.FORBIDDEN_MODULE_NAMES[part]}"
        for source in rules.python_sources()
        for part in source.module.split(".")
        if part in rules.FORBIDDEN_MODULE_NAMES and not source.is_listed(rules.ALLOWED_UTILS)
    ]

    assert not problems, rules.complain(problems, "a module's name says what it is about")


def test_the_public_utils_only_forward() -> None:
    """`accelkit.utils` defines nothing of its own: a docstring, imports, `__all__` and a lazy `__getattr__`."""
    names = ("__getattr__", "__dir__")
    problems = [
        source.at(node)
        for source in rules.python_sources("accelkit/utils")
        for node in source.tree.body
        if isinstance(node, ast.ClassDef)
        or (isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name not in names)
    ]

    assert not problems, rules.complain(problems, "accelkit.utils holds re-exports only")
