"""The protocol of trackers: what `Accelerator` asks of one, and what a script derives its own from."""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from accelkit.runtime import env
from accelkit.runtime.state import PartialState

_REQUIRED = ("name", "requires_logging_directory", "tracker")


class GeneralTracker:
    """Base of all trackers.

    A tracker defines `name` (how `log_with` and `get_tracker` know it), `requires_logging_directory` (whether it writes to a
    folder) and a property `tracker` (the library's own object), and overrides what of the methods below it needs.

    Raises NotImplementedError when one of the three is missing.
    """

    main_process_only: bool = True
    """Whether it is used on rank 0 alone; False: every rank starts it, logs to it and finishes it."""

    if TYPE_CHECKING:
        name: str
        requires_logging_directory: bool

        @property
        def tracker(self) -> Any:
            """The library's own object."""

    def __init__(self, _blank: bool = False) -> None:
        missing = [name for name in _REQUIRED if not hasattr(type(self), name) and name not in self.__dict__]
        if missing and not _blank:
            raise NotImplementedError(
                f"{type(self).__name__} is no tracker yet: it must define {', '.join(f'`{name}`' for name in missing)}\n"
                "  `name` and `requires_logging_directory` are attributes of the class, `tracker` is a property"
            )

    def start(self) -> None:
        """Begin the run; called once by `init_trackers`, on the ranks that use the tracker."""

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Keep the configuration of the run, as the script gave it to `init_trackers`."""

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Record values. Tensors and arrays of one element arrive as plain numbers; everything else as the script gave it."""

    def finish(self) -> None:
        """End the run."""


class LibraryTracker(GeneralTracker):
    """Base of trackers around an object of a library, which is made when the run starts.

    Args:
        run_name: the project.
        kwargs: arguments of the library's own function that begins a run.
    """

    requires_logging_directory = False

    def __init__(self, run_name: str | None, **kwargs: Any) -> None:
        super().__init__()
        self.run_name = run_name
        self.init_kwargs = kwargs
        self.run: Any = None

    @property
    def tracker(self) -> Any:
        """The library's own object; None before the start."""
        return self.run


class BlankTracker(GeneralTracker):
    """What `get_tracker` returns on ranks without trackers: every attribute is itself, every call does nothing."""

    name = "blank"
    requires_logging_directory = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Nothing."""

    @property
    def tracker(self) -> Any:
        """Itself."""
        return self


def on_main_process(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator for methods of trackers: rank 0 alone runs them, unless the tracker is for all (`main_process_only = False`)."""

    @wraps(function)
    def run_if_chosen(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs) if is_used_here(self) else None

    return run_if_chosen


def is_used_here(tracker: Any) -> bool:
    """Whether this rank uses a tracker. Makes no state and joins no group."""
    if not getattr(tracker, "main_process_only", True):
        return True
    state = PartialState.current()
    return env.read_world().rank == 0 if state is None else state.is_main_process
