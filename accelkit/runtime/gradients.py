"""Where a training loop is: which loader is being iterated, and whether gradients are to be synchronised in this step."""

from typing import Any, Protocol

from accelkit.runtime.settings import GradientAccumulationPlugin


class ActiveLoader(Protocol):
    """One running iteration over a prepared loader."""

    loader: Any
    at_end: bool
    """Whether the batch in use is the last one."""

    @property
    def remainder(self) -> int:
        """Real samples in the last round when it is not full, 0 when it is, -1 when that is not known."""

    def note_backward(self) -> None:
        """Gradients are computed in it: it is a loop that trains."""


class GradientState:
    """Shared by everything in the process that must know whether gradients are being synchronised: one object, however often made."""

    _shared: "GradientState | None" = None

    sync_gradients: bool
    """Whether this step completes an accumulation window."""
    num_steps: int
    """Micro-batches per optimizer step."""
    adjust_scheduler: bool
    sync_with_dataloader: bool
    sync_each_batch: bool

    def __new__(cls, plugin: GradientAccumulationPlugin | None = None) -> "GradientState":  # noqa: ARG004, PYI034
        """The one object; made at the first call."""
        if cls._shared is None:
            cls._shared = super().__new__(cls)
        return cls._shared

    def __reduce__(self) -> tuple[Any, ...]:
        return GradientState, ()

    def __init__(self, plugin: GradientAccumulationPlugin | None = None) -> None:
        if not hasattr(self, "_active"):
            self._start()
        if plugin is not None:
            self.num_steps = plugin.num_steps or 1
            self.adjust_scheduler = plugin.adjust_scheduler
            self.sync_with_dataloader = plugin.sync_with_dataloader
            self.sync_each_batch = plugin.sync_each_batch

    def _start(self) -> None:
        self.sync_gradients = True
        self.num_steps = 1
        self.adjust_scheduler = False
        self.sync_with_dataloader = True
        self.sync_each_batch = False
        self._active: list[ActiveLoader] = []
        self._moved: dict[ActiveLoader, bool] = {}
        """Iterations that moved on since a micro-batch was counted last, and whether they began then."""

    @classmethod
    def _reset_state(cls) -> None:
        """Put the shared object back to its defaults, wherever it is held."""
        if cls._shared is not None:
            cls._shared._start()  # noqa: SLF001  (its own)

    def __repr__(self) -> str:
        shown = ("sync_gradients", "num_steps", "end_of_dataloader", "remainder", "in_dataloader")
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    @property
    def plugin_kwargs(self) -> dict[str, Any]:
        """What is in force, as arguments of `GradientAccumulationPlugin` that differ from its defaults."""
        return GradientAccumulationPlugin(
            self.num_steps, self.adjust_scheduler, self.sync_with_dataloader, self.sync_each_batch
        ).to_kwargs()

    def _set_sync_gradients(self, sync_gradients: bool) -> None:
        """Say whether this step completes an accumulation window."""
        self.sync_gradients = sync_gradients

    @property
    def initialized(self) -> bool:
        """Always true: a state that exists can be used."""
        return True

    @property
    def iteration(self) -> ActiveLoader | None:
        """The innermost running iteration; None outside all loops."""
        return self._active[-1] if self._active else None

    @property
    def active_dataloader(self) -> Any:
        """The loader of the innermost running loop; None outside all loops."""
        return self._active[-1].loader if self._active else None

    @property
    def in_dataloader(self) -> bool:
        """Whether a prepared loader is being iterated."""
        return bool(self._active)

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the batch in use is the last one of the innermost loop; False outside all loops."""
        return self._active[-1].at_end if self._active else False

    @property
    def remainder(self) -> int:
        """Real samples in the last round of the innermost loop when it is not full, else 0; -1 when unknown, or outside all loops."""
        return self._active[-1].remainder if self._active else -1

    @property
    def dataloader_references(self) -> list[Any]:
        """Loaders of all running loops, outermost first; None stands for the outside."""
        return [None, *(active.loader for active in self._active)]

    def enter(self, iteration: ActiveLoader) -> None:
        """Make an iteration the innermost one: it has just begun, or it has just moved on."""
        active, moved = self._active, self._moved
        if active and active[-1] is iteration:
            moved.setdefault(iteration, False)
            return
        begins = iteration not in active
        if begins:  # inside those that go on, beside those that began with it
            for other in [other for other, began in moved.items() if not began]:
                del moved[other]
        else:
            active.remove(iteration)
        active.append(iteration)
        moved.setdefault(iteration, begins)

    def leave(self, iteration: ActiveLoader) -> None:
        """Take out an iteration that is over, whether it came to its end or was left."""
        self._moved.pop(iteration, None)
        if iteration in self._active:
            self._active.remove(iteration)

    def note_backward(self) -> None:
        """Gradients are computed now, in all running loops."""
        for iteration in self._active:
            iteration.note_backward()

    @property
    def has_moved(self) -> bool:
        """Whether a loader has moved on since the last micro-batch was counted."""
        return bool(self._moved)

    def take_end(self) -> bool:
        """Whether the micro-batch that is counted now is the last one; forgets which loaders moved on for it.

        It is the last one when any of them is at its end. Of loaders iterated side by side the shortest decides, therefore, and of
        nested ones the inner.
        """
        moved = self._moved
        if not moved:
            return self.end_of_dataloader
        found = any(iteration.at_end for iteration in moved)
        moved.clear()
        return found
