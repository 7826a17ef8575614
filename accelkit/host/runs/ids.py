"""Names of runs."""

import os
import time
from pathlib import Path


def new_id(runs_dir: Path) -> str:
    """An ID that no run in `runs_dir` has: UTC time and a random part, sortable, fit for a DNS label (22 characters)."""
    while True:
        run_id = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.urandom(3).hex()}"
        if not (runs_dir / run_id).exists():
            return run_id
