"""What a run leaves behind: metrics, a line each."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from accelkit.runtime.errors import SettingError


class MetricsLog:
    """Appends metrics to a file as JSON lines: `{"step": ..., "values": {...}, "hex": {...}}`.

    `hex` holds each number as `float.hex`, so that two runs can be compared bit for bit; `values` has null for what is not finite.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def write(self, values: Mapping[str, Any], step: int | None = None) -> None:
        """Append one line; without a file, do nothing. Raises SettingError for a value that is not a number or a text."""
        plain = {str(name): _plain(str(name), value) for name, value in values.items()}
        if self._path is None:
            return
        numbers = {name: value for name, value in plain.items() if isinstance(value, (int, float))}
        line = {
            "step": step,
            "values": {name: value if _is_writable(value) else None for name, value in plain.items()},
            "hex": {name: float(value).hex() for name, value in numbers.items()},
        }
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _plain(name: str, value: Any) -> Any:
    if hasattr(value, "item") and (not isinstance(value, torch.Tensor) or value.numel() == 1):
        value = value.item()
    if not isinstance(value, (int, float, str, bool)):
        raise SettingError(
            f"log: {name} is of type {type(value).__name__}", hint="log numbers, texts and tensors of one element"
        )
    return value


def _is_writable(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)
