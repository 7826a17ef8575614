"""What can go wrong in a rank, one class per reaction that a caller may have.

AccelkitError
|-- SettingError (also a ValueError)         a setting is wrong, or contradicts another
|-- UnsupportedError (also a RuntimeError)   this device, strategy or input cannot do what was asked
|-- CheckpointError (also a RuntimeError)    a checkpoint cannot be written, or cannot be loaded as it is
|-- MissingPackageError (also an ImportError) an optional library that was asked for is not installed
|-- RankFailedError (also a RuntimeError)    a rank that was started from this process failed
|-- TrackerError (also a RuntimeError)       the library behind a tracker failed
|-- BatchSourceError (also a RuntimeError)   the rank that reads the data for all could not go on
+-- DistributedOperationException            the ranks do not agree on a collective operation
"""


class AccelkitError(Exception):
    """Base of all errors of the runtime. The message says what and where; `hint` says what to do next."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message}\n  {hint}" if hint else message)
        self.hint = hint


class SettingError(AccelkitError, ValueError):
    """A setting (argument, variable, field of the launch spec) that is not allowed, or contradicts another."""


class UnsupportedError(AccelkitError, RuntimeError):
    """What was asked for cannot be done here, and doing something else instead would change results."""


class CheckpointError(AccelkitError, RuntimeError):
    """A checkpoint that cannot be written, or that is damaged, incomplete, or of something else than what is prepared."""


class MissingPackageError(AccelkitError, ImportError):
    """An optional library that was asked for is not installed; the hint says how to install it."""


class RankFailedError(AccelkitError, RuntimeError):
    """A rank that this process started has failed. The message holds its traceback."""


class TrackerError(AccelkitError, RuntimeError):
    """The library behind a tracker failed. The message names the tracker, the cause is the library's own error."""


class DistributedOperationException(AccelkitError):
    """The ranks hold different shapes, types or structures, or call different operations; raised on every rank."""


class BatchSourceError(AccelkitError, RuntimeError):
    """Rank 0 reads the data for all ranks and could not go on; raised on the others, with its traceback."""
