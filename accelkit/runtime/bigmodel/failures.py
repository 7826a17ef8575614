"""What can go wrong with the files of a model."""

from accelkit.runtime.errors import AccelkitError, CheckpointError


class CheckpointFileError(CheckpointError, ValueError):
    """A checkpoint is damaged, is not what its index says, or does not fit the model. The model was not touched."""


class OffloadError(AccelkitError, OSError):
    """Weights could not be written to an offload folder. What was begun is removed."""
