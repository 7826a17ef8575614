"""How a process that has process groups of gloo comes to its end.

Gloo's own threads run collectives. One that lets go of its last tensor after the interpreter has begun to end wants the GIL, is ended
for it in the middle of a destructor, and takes the process with it: "terminate called without an active exception", exit code 134, after
all the work was done. So while Python is still whole groups are taken down (which waits for their threads), and of groups that something
still refers to, such as a DDP model, the threads are left time to come to rest.
"""

import sys
import time
from pathlib import Path
from typing import Any, Final

_THREAD: Final = "pt_gloo_runloop"
"""What torch names them."""
_LIMIT: Final = 5.0
"""Seconds after which a thread that is still busy is none of the last moments of a collective."""


def leave_groups() -> None:
    """At exit, after everything else: take down the groups of gloo that a script did not, and let their threads come to rest.

    A process that ends by an exception takes none down: its other ranks must not be waited for.
    """
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available():
        return
    if getattr(sys, "last_value", None) is None and dist.is_initialized() and _is_gloo(dist.get_backend_config()):
        dist.destroy_process_group()
    settle()


def _is_gloo(backends: str) -> bool:
    """Whether every device's backend ("cpu:gloo,cuda:gloo") is: to take down others may mean to wait for other ranks."""
    return all(part.rpartition(":")[2] == "gloo" for part in backends.split(","))


def settle() -> None:
    """Return when no thread of gloo computes: twice in a row, so that one that waits for the GIL has had it meanwhile."""
    quiet, deadline = 0, time.monotonic() + _LIMIT
    while (states := _states()) and quiet < 2 and time.monotonic() < deadline:
        quiet = quiet + 1 if all(state == "S" for state in states) else 0
        time.sleep(0.001)  # with the GIL let go


def _states() -> list[str]:
    """The states of gloo's threads in this process, as the kernel's letters; empty where there is no /proc."""
    found = []
    for thread in Path("/proc/self/task").glob("*/stat"):
        try:
            name, _, rest = thread.read_text(encoding="utf-8", errors="replace").partition("(")[2].rpartition(")")
        except OSError:  # it has ended
            continue
        if name == _THREAD:
            found.append(rest.split()[0])
    return found
