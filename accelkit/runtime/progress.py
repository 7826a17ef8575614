"""Progress bars on several ranks."""

from typing import Any

from accelkit.runtime import available, env
from accelkit.runtime.errors import MissingPackageError
from accelkit.runtime.state import PartialState


def tqdm(*args: Any, main_process_only: bool = True, **kwargs: Any) -> Any:
    """`tqdm.auto.tqdm`, shown on the first rank of each node only; `main_process_only=False`: on every rank.

    On the other ranks it iterates and shows nothing. Raises MissingPackageError (an ImportError) where tqdm is not installed.
    """
    if args and isinstance(args[0], bool):
        raise ValueError("tqdm: the first argument is what to iterate over; write tqdm(..., main_process_only=...)")
    if not available.is_tqdm_available():
        raise MissingPackageError(
            "accelkit.utils.tqdm needs tqdm, which is not installed", hint=available.how_to_install("tqdm")
        )
    from tqdm.auto import tqdm as bar

    if main_process_only and _local_rank() != 0:
        kwargs["disable"] = True
    return bar(*args, **kwargs)


def _local_rank() -> int:
    state = PartialState.current()
    return env.read_world().local_rank if state is None else state.local_process_index
