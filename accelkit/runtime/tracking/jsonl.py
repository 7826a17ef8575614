"""Metrics as JSON lines: the record of a run, and the tracker that needs nothing but a folder."""

import json
import math
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from accelkit.runtime.errors import SettingError
from accelkit.runtime.tracking.base import GeneralTracker, on_main_process
from accelkit.runtime.tracking.values import flat, nested_config, number


class JSONLTracker(GeneralTracker):
    """Appends to `LOGGING_DIR/RUN_NAME/metrics.jsonl`.

    A line per call of `log`: `{"step": ..., "values": {...}, "hex": {...}}`; nested values have keys joined by `/`. `hex` holds each
    number as `float.hex`, so that two runs can be compared bit for bit; `values` has null for what is not finite. The configuration
    is a line `{"config": {...}}`.
    """

    name = "jsonl"
    requires_logging_directory = True

    def __init__(self, run_name: str, logging_dir: str | PathLike[str]) -> None:
        super().__init__()
        self.path = Path(logging_dir) / run_name / "metrics.jsonl"

    @classmethod
    def at(cls, path: Path) -> "JSONLTracker":
        """One that appends to a given file, whose folder is there."""
        made = cls("", "")
        made.path = path
        return made

    @property
    def tracker(self) -> Path:
        """The file."""
        return self.path

    @on_main_process
    def start(self) -> None:
        """Make the folder."""
        self.path.parent.mkdir(parents=True, exist_ok=True)

    @on_main_process
    def store_init_configuration(self, values: Any) -> None:
        """Append the configuration."""
        self._append({"config": nested_config(values)})

    @on_main_process
    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Append one line. Raises SettingError for a value that is not a number or a text."""
        self.append(plain_values(values, strict=True), step)

    def append(self, plain: Mapping[str, Any], step: int | None) -> None:
        """Append one line of values that are plain already."""
        numbers = {name: value for name, value in plain.items() if isinstance(value, (int, float))}
        line = {
            "step": step,
            "values": {name: value if _is_writable(value) else None for name, value in plain.items()},
            "hex": {name: float(value).hex() for name, value in numbers.items()},
        }
        self._append(line)

    def _append(self, line: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def plain_values(values: Mapping[str, Any], *, strict: bool) -> dict[str, Any]:
    """The numbers and texts among values, by flat names. `strict`: raise SettingError for a value that is neither."""
    plain = {name: number(value) for name, value in flat(values).items()}
    odd = [name for name, value in plain.items() if not isinstance(value, (int, float, str))]
    if odd and strict:
        raise SettingError(
            f"log: {odd[0]} is of type {type(plain[odd[0]]).__name__}",
            hint="log numbers, texts and tensors of one element",
        )
    return {name: value for name, value in plain.items() if name not in odd}


def _is_writable(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)
