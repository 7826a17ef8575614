"""Which epoch a loader is in, and who is told of it."""

from collections.abc import Sequence
from typing import Any


class Epochs:
    """The epoch counter of one loader and all views of it. Epochs follow each other by themselves, from 0."""

    def __init__(self, own: Sequence[Any], others: Sequence[Any] = (), *, data_changes: bool = False) -> None:
        self.upcoming = 0
        """The epoch that the next iteration is."""
        self._chosen = False
        self._own = list(own)
        """Samplers of ours: always told."""
        self._others = [(other, getattr(other, "epoch", None)) for other in others]
        """The script's objects with a set_epoch, and the epoch we last left them in: told unless the script did it itself."""
        self._data_changes = data_changes

    def choose(self, epoch: int) -> None:
        """Make the next iteration epoch `epoch`; everyone concerned is told when it begins."""
        self.upcoming = epoch
        self._chosen = True

    def begin(self) -> bool:
        """Tell everyone which epoch begins, and count it. True when copies of the data set elsewhere are out of date."""
        epoch, chosen = self.upcoming, self._chosen
        self.upcoming, self._chosen = epoch + 1, False
        for sampler in self._own:
            sampler.set_epoch(epoch)
        for index, (other, left_at) in enumerate(self._others):
            if chosen or getattr(other, "epoch", None) == left_at:
                other.set_epoch(epoch)
                self._others[index] = (other, getattr(other, "epoch", None))
        return self._data_changes
