"""Tools around the training loop, as methods of `Accelerator`: trackers, profiling, compilation."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from accelkit.runtime import profiling
from accelkit.runtime.compilation import Compilation, make_plugin
from accelkit.runtime.settings import Handlers, ProfileKwargs, TorchDynamoPlugin
from accelkit.runtime.tracking.methods import TrackingMethods


class ToolMethods(TrackingMethods):
    """What a loop can do without, and people cannot."""

    _handlers: Handlers

    def _keep_tools(self, log_with: Any, dynamo_backend: Any, dynamo_plugin: TorchDynamoPlugin | None) -> None:
        """Decide how models are compiled, and which trackers there are."""
        self._compilation = Compilation(make_plugin(dynamo_backend, dynamo_plugin))
        self._keep_trackers(log_with)

    @property
    def dynamo_plugin(self) -> TorchDynamoPlugin:
        """How prepared models are compiled."""
        return self._compilation.plugin

    @property
    def profile_handler(self) -> ProfileKwargs | None:
        """The script's handler of that class; None where it gave none."""
        return self._handlers.given(ProfileKwargs)

    @contextmanager
    def profile(self, profile_handler: ProfileKwargs | None = None) -> Iterator[Any]:
        """A block that torch's profiler records; it yields the profiler, whose `step()` a schedule counts.

        `profile_handler` overrides the constructor's. With its `output_trace_dir`, every rank writes `profile_RANK.json` there, and waits
        for the others; all ranks call it then.
        """
        handler = profile_handler or self._handlers.get(ProfileKwargs)
        with handler.build() as profiler:
            yield profiler
        if handler.output_trace_dir is not None:
            try:
                profiling.write_trace(profiler, handler.output_trace_dir, self.process_index)
            finally:
                self.wait_for_everyone()
