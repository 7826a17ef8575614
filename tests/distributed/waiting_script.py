"""A rank that does not come to a collective operation: python waiting_script.py near|first|far|killed."""

import os
import signal
import sys
import time
from datetime import timedelta

import torch

from accelkit import Accelerator, InitProcessGroupKwargs
from accelkit.runtime.collectives import neighbours


def oversleep() -> None:
    """What the last rank does meanwhile."""
    time.sleep(12)


def main(way: str) -> None:
    """All ranks but the last gather."""
    acc = Accelerator(kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(seconds=6))])
    if way == "far":
        neighbours._machine = lambda: f"machine {acc.process_index}"
    if way != "first":
        acc.gather(torch.ones(100_000))
    if acc.is_last_process and way == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif acc.is_last_process:
        oversleep()
    else:
        acc.gather({"x": torch.ones(1)})


if __name__ == "__main__":
    main(sys.argv[1])
