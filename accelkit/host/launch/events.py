"""What happens while a run lives, as values in one queue: the supervisor's only input."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    import queue


@dataclass(frozen=True)
class Line:
    """A line that a node printed, with its prefix and its end."""

    stream: Literal["stdout", "stderr"]
    data: bytes


@dataclass(frozen=True)
class Started:
    """All nodes were started."""


@dataclass(frozen=True)
class StartFailed:
    """The nodes could not be started."""

    error: Exception


@dataclass(frozen=True)
class NodeExited:
    """A node is gone."""

    node: int
    code: int
    """As a shell would see it."""
    oom: bool = False
    """The engine says that its memory limit killed it."""


@dataclass(frozen=True)
class EngineLost:
    """The engine does not answer any more."""

    message: str


@dataclass(frozen=True)
class Signalled:
    """kit itself was sent a signal."""

    number: int


Event: TypeAlias = Line | Started | StartFailed | NodeExited | EngineLost | Signalled

EventQueue: TypeAlias = "queue.SimpleQueue[Event]"
"""SimpleQueue: its put() may be called from a signal handler."""
