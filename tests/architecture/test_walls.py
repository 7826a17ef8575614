"""The walls between packages: read from the import statements, and proved by importing with the other side absent."""

import ast
import json
import subprocess
import sys
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.architecture import rules

IMPORT_ALL = """
import importlib, json, sys, traceback

blocked, modules = json.loads(sys.argv[1])

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
failed = {}
for module in modules:
    try:
        importlib.import_module(module)
    except BaseException:
        failed[module] = traceback.format_exc(limit=-2)
print(json.dumps(failed))
"""


def owner_of(module: str) -> str:
    """The package of rules.MAY_IMPORT that a module belongs to."""
    return max((package for package in rules.MAY_IMPORT if rules.is_within(module, package)), key=len)


def is_allowed(source: rules.Source, name: str) -> bool:
    """Whether the rules let this file import this dotted name."""
    owner = owner_of(source.module)
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names or name in {"accelkit", "accelkit.__version__"}:
        return True
    listed = {**rules.OPTIONAL_LIBRARIES, **rules.ONLY_FOR_TYPES}
    if top in listed and source.is_listed(listed[top]):
        return True
    within_itself = owner != "accelkit" and rules.is_within(name, owner)
    return within_itself or any(rules.is_within(name, allowed) for allowed in rules.MAY_IMPORT[owner])


def part_of(name: str, package: str) -> str:
    """The first-level part of a package that a dotted name belongs to; empty for the package itself."""
    for own in rules.OWN_PARTS:
        if rules.is_within(name, own):
            return own
    return name.removeprefix(package).strip(".").partition(".")[0] if rules.is_within(name, package) else ""


def failures_without(blocked: set[str], modules: list[str]) -> dict[str, str]:
    """Import modules in a fresh interpreter in which some libraries do not exist; module -> traceback."""
    arguments = json.dumps([sorted(blocked), modules])
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, arguments],
        cwd=rules.ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    failed: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return failed


def modules_in(package: str) -> list[str]:
    """The importable modules of a package."""
    sources = rules.python_sources(package.replace(".", "/"))
    names = (source.module for source in sources if rules.is_within(source.module, package))
    return [name for name in names if not name.endswith("__main__")]


def test_every_package_imports_only_what_it_may() -> None:
    """Each import statement, also inside a function, stays on its side of the walls."""
    problems = [
        f"{source.at(node)}: {owner_of(source.module)} must not import {name}"
        for source in rules.python_sources("accelkit/")
        for node, name in rules.imported_names(source)
        if not is_allowed(source, name)
    ]

    assert not problems, rules.complain(problems, "imports stay within rules.MAY_IMPORT")


@pytest.mark.parametrize("package", ["accelkit.host", "accelkit.runtime"])
def test_parts_of_a_package_import_each_other_in_one_direction(package: str) -> None:
    """The first-level parts of a package form no cycle, imports inside functions included."""
    edges: dict[str, set[str]] = defaultdict(set)
    for source in rules.python_sources(package.replace(".", "/") + "/"):
        part = part_of(source.module, package)
        others = {part_of(name, package) for _, name in rules.imported_names(source)}
        if part:
            edges[part] |= others - {part, ""}

    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        pytest.fail(f"{package}: these import each other in a circle: {' <- '.join(error.args[1])}")


def test_the_host_side_imports_without_torch() -> None:
    """Every host and contract module imports where torch, numpy and safetensors are absent."""
    modules = modules_in("accelkit.host") + modules_in("accelkit.contract")
    failed = failures_without({"torch", "numpy", "safetensors"}, modules)

    assert not failed, rules.complain([f"{name}\n{text}" for name, text in failed.items()], "host needs no torch")


def test_the_runtime_imports_without_the_host_side() -> None:
    """Every runtime and contract module imports in an image without the libraries of the host side."""
    absent = {"typer", "click", "rich", "docker", "yaml", "pydantic", "pytest", "testcontainers"}
    optional = set(rules.OPTIONAL_LIBRARIES) - {"numpy"}
    failed = failures_without(absent | optional, modules_in("accelkit.runtime") + modules_in("accelkit.contract"))

    assert not failed, rules.complain([f"{name}\n{text}" for name, text in failed.items()], "the image has no host")


def test_the_launcher_in_the_container_imports_without_torch() -> None:
    """The modules of rules.NEEDS_NO_TORCH import where torch is absent."""
    modules = [name for package in rules.NEEDS_NO_TORCH for name in modules_in(package)]
    failed = failures_without({"torch", "numpy", "safetensors"}, modules)

    assert not failed, rules.complain([f"{name}\n{text}" for name, text in failed.items()], "boot needs no torch")


def test_optional_libraries_are_imported_where_they_are_used() -> None:
    """A file about an optional library imports it inside functions (or for types only), so that it loads without."""
    problems = [
        f"{source.at(node)}: {ast.unparse(node)}"
        for source in rules.python_sources("accelkit/")
        for node in source.tree.body
        if isinstance(node, (ast.Import, ast.ImportFrom))
        and ast.unparse(node).split()[1].partition(".")[0] in rules.OPTIONAL_LIBRARIES
    ]

    assert not problems, rules.complain(problems, "optional libraries are imported inside functions")
