"""The errors of the host side, one class per reaction of the caller.

    KitError                  a message for the user; exit code 125 unless a subclass says otherwise
    |-- UsageError            what was typed cannot be done: exit code 2
    |   `-- ConfigError       one or more problems of the configuration, all at once
    |-- EngineError           Docker (or a tool under it) failed or is not there
    |   |-- EngineUnavailable no engine answers
    |   |-- ImageNotFound     the engine has no such image
    |   `-- BuildError        a build failed: step, last lines, path of the log
    |-- RecordError           a run's record is missing, damaged, or of another version
    |   `-- RunNotFound       no run, or more than one, has the name that was typed: exit code 2
    |-- DriftError            a lock does not fit what is asked for: exit code 1
    |-- RunElsewhere          a run can be ended on the machine where it was started only
    `-- DifferenceError       `kit reproduce` found differences that were not allowed: exit code 1

A message says what is wrong, where (file:key, flag, rank), what is allowed, and what to type next.
"""

from accelkit.contract import names


class KitError(Exception):
    """A failure with a message for the user. `exit_code` is what kit exits with (default 125)."""

    exit_code: int = names.EXIT_KIT

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        """`message`: what and where; `hint`: what to type next (printed on a line of its own)."""
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(KitError):
    """What was typed cannot be done."""

    exit_code = names.EXIT_USAGE


class EngineError(KitError):
    """The engine, or a tool under it, failed."""


class EngineUnavailable(EngineError):
    """No container engine answers."""


class ImageNotFound(EngineError):
    """The engine has no such image."""


class BuildError(EngineError):
    """An image could not be built."""


class RecordError(KitError):
    """A run's record cannot be read."""


class RunNotFound(RecordError):
    """No run, or more than one, has the name that was typed."""

    exit_code = names.EXIT_USAGE


class DriftError(KitError):
    """A lock does not fit what is asked for."""

    exit_code = names.EXIT_FAILED


class RunElsewhere(KitError):
    """A run of another machine, whose processes cannot be seen from here."""


class DifferenceError(KitError):
    """Differences that `kit reproduce` was not allowed to pass over."""

    exit_code = names.EXIT_FAILED
