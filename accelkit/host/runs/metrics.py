"""Reading the metrics that a run's main process wrote: a JSON line each, `{"step": ..., "values": {name: number}, "hex": {name: text}}`."""

import json
from pathlib import Path
from typing import Any

from accelkit.host.runs.record import Metric


def read(path: Path) -> dict[str, Metric]:
    """Name -> last value. A missing file is no metrics; a line that was cut short (its writer was killed) ends the reading."""
    found: dict[str, Metric] = {}
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return found
    for line in text.splitlines():
        try:
            entry: dict[str, Any] = json.loads(line)
        except ValueError:
            break
        for name, text_form in entry.get("hex", {}).items():
            value = entry.get("values", {}).get(name)
            found[name] = Metric(value=value, hex=text_form, step=entry.get("step"))
    return found
