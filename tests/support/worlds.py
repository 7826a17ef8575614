"""In a test: worlds of ranks that each run the checks of a module, once per session."""

import json
from types import ModuleType

import pytest

from tests.support.ranks import Outcome, run_ranks

Found = tuple[list[Outcome], list[dict[str, str]]]
"""How each rank ended, and what each of its checks found: "" for one that passed."""


def checks_of(module: ModuleType) -> list[str]:
    """The names of a module's checks."""
    return [name for name in vars(module) if name.startswith("check_")]


class Worlds:
    """The worlds that have run."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        """`folders`: where the ranks write."""
        self._folders = folders
        self._found: dict[tuple[str, int], Found] = {}

    def visit(self, module: ModuleType, size: int) -> Found:
        """What the ranks of that world found; the first call runs it."""
        key = (module.__name__, size)
        if key not in self._found:
            folder = self._folders.mktemp("world")
            outcomes = run_ranks(size, "-m", module.__name__, str(folder), timeout=200)
            files = [folder / f"{rank}.json" for rank in range(size)]
            self._found[key] = outcomes, [json.loads(file.read_text()) if file.exists() else {} for file in files]
        return self._found[key]

    def check(self, module: ModuleType, size: int, check: str) -> None:
        """Assert that a check holds on every rank, and that the ranks that all checks held on ended well."""
        outcomes, found = self.visit(module, size)
        for rank, (outcome, results) in enumerate(zip(outcomes, found, strict=True)):
            told = results.get(check, "was not reached")
            assert told == "", f"rank {rank}: {told}\n{outcome.output[-3000:]}"
            if len(results) == len(checks_of(module)) and not any(results.values()):
                assert outcome.code == 0, f"rank {rank}: exit code {outcome.code}\n{outcome.output[-3000:]}"
