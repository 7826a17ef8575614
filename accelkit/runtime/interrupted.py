"""Blocks that a module's hooks enter and leave: left as well where Ctrl-C ends the forward between the two.

torch calls no hook after a KeyboardInterrupt. A script, or the next cell of a notebook, would then compute under autocast without a word.
What was entered is therefore kept with the frame that called the hook: where that frame runs no more, the block is over.
"""

import sys
import threading
from dataclasses import dataclass
from types import FrameType
from typing import Any


@dataclass(frozen=True)
class _Entered:
    owner: Any
    block: Any
    frame: FrameType
    """In which the forward runs. The frame itself: its ID would soon be another one's."""


class _Stack(threading.local):
    """What is entered in this thread, the innermost last."""

    def __init__(self) -> None:
        self.entered: list[_Entered] = []


_STACK = _Stack()
_watched: list[Any] = []
"""The notebook that closes blocks after each cell."""


def enter(owner: Any, block: Any) -> None:
    """Enter a block for the forward that calls the caller."""
    close()
    _watch_cells()
    block.__enter__()
    _STACK.entered.append(_Entered(owner, block, sys._getframe(2)))  # noqa: SLF001  (the frame is what it is about)


def leave(owner: Any) -> None:
    """Leave the owner's innermost block, where it has one."""
    for place in range(len(_STACK.entered) - 1, -1, -1):
        if _STACK.entered[place].owner is owner:
            _STACK.entered.pop(place).block.__exit__(None, None, None)
            return


def close(*_: Any) -> None:
    """Leave the blocks of this thread whose forward was ended without a word, the innermost first."""
    if not _STACK.entered:
        return
    running: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None:
        running.append(frame)
        frame = frame.f_back
    while _STACK.entered and all(_STACK.entered[-1].frame is not one for one in running):
        _STACK.entered.pop().block.__exit__(None, None, None)


def _watch_cells() -> None:
    """In a notebook: leave what a cell has left open when it ends."""
    notebook = sys.modules.get("IPython")
    shell = None if notebook is None else notebook.get_ipython()
    if shell is not None and shell not in _watched:
        _watched.append(shell)
        shell.events.register("post_execute", close)
