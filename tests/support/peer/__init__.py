"""The public package `accelerate` as another name for accelkit, so that the checks it ships can run against us.

Nothing of that package is copied: `accelerate.test_utils` comes from the installed wheel, everything else is this library.

python -m tests.support.peer SCRIPT [left-out check ...]
"""

import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import sys
import types
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import accelkit
import accelkit.hooks
import accelkit.utils

NAME = "accelerate"
FROM_THE_WHEEL = f"{NAME}.test_utils"
SCRIPTS = f"{FROM_THE_WHEEL}.scripts"


MODULES = frozenset(
    {NAME}
    | {
        f"{NAME}.{module}"
        for module in (
            "accelerator",
            "big_modeling",
            "data_loader",
            "hooks",
            "optimizer",
            "scheduler",
            "state",
            "utils",
        )
    }
    | {f"{NAME}.utils.{module}" for module in ("dataclasses", "imports", "modeling", "offload", "operations")}
)
"""What the checks, and other libraries, import."""


class Alias(types.ModuleType):
    """A module of the alias: every public name of ours, wherever the package has it.

    A name that we lack can be imported, since one file holds many checks, but not used.
    """

    def __getattr__(self, name: str) -> Any:
        for home in (accelkit, accelkit.utils, accelkit.hooks):
            if name in home.__dict__ or name in dir(home):
                return getattr(home, name)
        if name.startswith("_"):
            raise AttributeError(name)
        return partial(_lacks, f"accelkit has no public name {name!r} (asked for as {self.__name__}.{name})")


def _lacks(message: str, *_: Any, **__: Any) -> NoReturn:
    raise NotImplementedError(message)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `accelerate` and all below it: the wheel's checks in the wheel, the rest here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """The module's place; None for all other modules."""
        if name == FROM_THE_WHEEL:
            folder = self.folder / "test_utils"
            return importlib.util.spec_from_file_location(
                name, folder / "__init__.py", submodule_search_locations=[str(folder)]
            )
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name in MODULES else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """An alias."""
        return Alias(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing runs: names are looked up when they are asked for."""


def wheel_folder() -> Path | None:
    """Where the package is installed; None where it is not."""
    try:
        found = importlib.metadata.distribution(NAME)
    except importlib.metadata.PackageNotFoundError:
        return None
    return Path(str(found.locate_file(NAME)))


def install() -> None:
    """From now on `import accelerate` is this library. Raises SystemExit where the wheel is not installed."""
    folder = wheel_folder()
    if folder is None:
        raise SystemExit(f"{NAME} is not installed: pip install --no-deps {NAME}==1.15.0")
    sys.meta_path.insert(0, Finder(folder))
