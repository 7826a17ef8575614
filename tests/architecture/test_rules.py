"""The rules bite: each of them finds what it is there to find, in a file written to break it."""

from pathlib import Path

import pytest

from tests.architecture import rules, test_budgets, test_effects, test_walls

BREAKS_EFFECTS = {
    "READS_ENVIRONMENT": [
        "import os\nos.environ['A']",
        "from os import getenv",
        "import os\nos.putenv('A', 'b')",
    ],
    "STARTS_PROCESSES": [
        "import subprocess",
        "def later():\n    from subprocess import run",
        "import os\nos.execvp('a', [])",
        "import os\nos.posix_spawn('a', [], {})",
        "import asyncio\nasyncio.create_subprocess_exec('a')",
    ],
    "CATCHES_EVERYTHING": [
        "try:\n    pass\nexcept:\n    pass",
        "try:\n    pass\nexcept (ValueError, Exception):\n    pass",
        "try:\n    pass\nexcept BaseException:\n    raise ValueError from None",
    ],
}
FORBIDDEN_IMPORTS = [
    ("accelkit/contract/broken.py", "import yaml"),
    ("accelkit/contract/broken.py", "from accelkit.host import paths"),
    ("accelkit/host/broken.py", "def later():\n    import torch"),
    ("accelkit/host/broken.py", "from ..runtime import state"),
    ("accelkit/host/broken.py", "from accelkit import Accelerator"),
    ("accelkit/host/broken.py", "import accelkit.testing"),
    ("accelkit/runtime/broken.py", "from accelkit import host"),
    ("accelkit/runtime/broken.py", "import numpy"),
    ("accelkit/runtime/broken.py", "import accelkit.compat.accelerate"),
    ("accelkit/testing/broken.py", "from accelkit.runtime import state"),
]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty repository in place of the real one."""
    monkeypatch.setattr(rules, "ROOT", tmp_path)
    rules._parse.cache_clear()
    return tmp_path


def write(root: Path, path: str, text: str) -> rules.Source:
    """A source file of the stand-in repository."""
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text + "\n", encoding="utf-8")
    return rules.Source(path)


@pytest.mark.parametrize(("rule", "text"), [(rule, text) for rule, texts in BREAKS_EFFECTS.items() for text in texts])
def test_an_effect_is_found(written: Path, rule: str, text: str) -> None:
    """Each way to read the environment, start a process or swallow every error is seen."""
    find, _ = test_effects.RULES[rule]

    assert list(find(write(written, "accelkit/host/broken.py", text)))


def test_a_clean_up_that_raises_again_is_no_broad_handler(written: Path) -> None:
    """`except BaseException: ...; raise` may stand anywhere."""
    text = "try:\n    pass\nexcept BaseException:\n    print()\n    raise"

    assert not list(test_effects.broad_handlers(write(written, "accelkit/host/fine.py", text)))


@pytest.mark.parametrize(("path", "text"), FORBIDDEN_IMPORTS)
def test_an_import_through_a_wall_is_found(written: Path, path: str, text: str) -> None:
    """Absolute, relative and deferred imports of the other side are seen."""
    source = write(written, path, text)

    assert not all(test_walls.is_allowed(source, name) for _, name in rules.imported_names(source))


def test_an_import_within_the_walls_is_allowed(written: Path) -> None:
    """The standard library, what the table names, the package itself and the version pass."""
    text = "import json\nimport docker\nfrom . import paths\nfrom accelkit import __version__\nimport accelkit.contract"
    source = write(written, "accelkit/host/fine.py", text)

    assert all(test_walls.is_allowed(source, name) for _, name in rules.imported_names(source))


def test_a_function_is_measured_without_its_docstring(written: Path) -> None:
    """Lines count from `def` to the end less the docstring; branches of a nested function are its own."""
    text = 'def outer(a):\n    """One.\n\n    Two.\n    """\n'
    text += "    def inner():\n        return 1 if a else 2\n    return a and inner"
    outer, inner = rules.walk_functions(write(written, "accelkit/host/long.py", text).tree)

    assert test_budgets.function_lines(outer) == 4
    assert test_budgets.count_branches(outer) == 1
    assert test_budgets.count_branches(inner) == 1
