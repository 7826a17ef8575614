"""Putting off Python's garbage collector."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Put automatic collections off to the end of this block (also usable as a decorator).

    Loading makes thousands of small objects and no garbage. The full collection that they would set off goes through everything
    that torch ever made, and takes several times as long as the loading.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
