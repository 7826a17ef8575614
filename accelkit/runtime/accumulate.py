"""Accumulating gradients: which micro-batch completes a window."""

from accelkit.runtime.gradients import GradientState


class Accumulation:
    """Counts micro-batches and decides when gradients are synchronised."""

    def __init__(self, state: GradientState) -> None:
        self.state = state
        self.step = 0
        """Micro-batches since the last loader's end."""

    def advance(self) -> bool:
        """Count one micro-batch; True when it completes a window. The last batch of a loader always does."""
        state = self.state
        if state.sync_with_dataloader and state.end_of_dataloader:
            self.step = 0
            state.sync_gradients = True
        else:
            self.step += 1
            state.sync_gradients = self.step % state.num_steps == 0
        return state.sync_gradients
