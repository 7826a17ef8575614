"""What can go wrong with the files of a model."""

from accelkit.runtime.errors import CheckpointError, OffloadError

__all__ = ["CheckpointError", "OffloadError"]
