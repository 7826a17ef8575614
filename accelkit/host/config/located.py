"""A value of the configuration with its place; apart from the reader of files, so that a run without any needs no YAML."""

from typing import Any

from accelkit.contract.data import data


@data
class Located:
    """A value and where it stands."""

    value: Any
    kind: str
    """flag, variable, file, project or user."""
    where: str
