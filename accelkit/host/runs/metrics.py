"""Reading the metrics that a run's main process wrote: a JSON line each, `{"step": ..., "values": {name: number}, "hex": {name: text}}`.

A line `{"config": {...}}` is the configuration of trackers, and holds no metric.
"""

import json
from pathlib import Path
from typing import Any

from accelkit.host.runs.record import Metric


def read(path: Path) -> dict[str, Metric]:
    """Name -> last value. A missing file is no metrics; a line that was cut short (its writer was killed) or is not ours ends it."""
    found: dict[str, Metric] = {}
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return found
    for line in text.split("\n"):
        try:
            entry: dict[str, Any] = json.loads(line)
            if "config" in entry:
                continue
            values, exact, step = entry["values"], entry["hex"], entry["step"]
            found |= {str(name): Metric(value=values[name], hex=str(exact[name]), step=step) for name in exact}
        except (ValueError, TypeError, KeyError):
            break
    return found
