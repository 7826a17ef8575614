"""TOML as Python has it since 3.11, and before that as `tomli`; damaged files are named."""

import sys
from pathlib import Path
from typing import Any

from accelkit.host.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def parse(text: str, where: Path) -> dict[str, Any]:
    """The document of a file's text. Raises UsageError that names the file and what is wrong with it."""
    try:
        found: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{where}: not TOML: {error}") from error
    return found
