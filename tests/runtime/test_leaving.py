"""The last moments of a process that has groups of gloo."""

import ctypes
import hashlib
import threading

from accelkit.runtime.leaving import settle

PR_SET_NAME = 15


def test_what_a_thread_of_gloo_still_does_is_waited_for() -> None:
    """Settling returns once it rests, not before; without such threads at once."""
    settle()
    up, rests, may_end = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        ctypes.CDLL(None).prctl(PR_SET_NAME, b"pt_gloo_runloop", 0, 0, 0)
        text = bytes(100_000_000)
        up.set()
        hashlib.sha256(text)  # without the GIL
        rests.set()
        may_end.wait()

    thread = threading.Thread(target=work)
    thread.start()
    up.wait()
    settle()

    assert rests.is_set()
    may_end.set()
    thread.join()
