"""Logging on several ranks: rank 0 speaks for all, unless a call says otherwise."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from accelkit.runtime import env
from accelkit.runtime.errors import SettingError, UnsupportedError
from accelkit.runtime.state import PartialState

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter  # Python 3.10 cannot index it

LEVEL_VARIABLE: Final = "ACCELKIT_LOG_LEVEL"
_FRAMES: Final = 3
"""From the call into `logging` back to the script's own line: `_emit`, `log`, the script."""
_said: set[tuple[str, str]] = set()
"""Logger and message of every `warning_once`."""


class MultiProcessAdapter(_Adapter):
    """A logger whose methods take two more keyword arguments, and whose messages begin with `[RANK i]`.

    `main_process_only` (default True): rank 0 alone logs. `in_order` (default False): every rank logs, one after the other; all
    ranks must make the call, whatever their level.

    Before an `Accelerator` exists the rank is the one that the launcher tells; messages in order of ranks need an `Accelerator`.
    """

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        """The message with its rank."""
        extra = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return f"[RANK {_rank()}] {msg}", {**kwargs, "extra": extra}

    def log(  # type: ignore[override]  # two keyword arguments more
        self, level: int, msg: Any, *args: Any, main_process_only: bool = True, in_order: bool = False, **kwargs: Any
    ) -> None:
        """Log on rank 0, on every rank, or on one after the other."""
        if in_order:
            self._emit_in_order(level, msg, args, kwargs)
        elif not main_process_only or _rank() == 0:
            self._emit(level, msg, args, kwargs)

    def _emit(
        self, level: int, msg: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], frames: int = _FRAMES
    ) -> None:
        if self.isEnabledFor(level):
            text, given = self.process(msg, kwargs)
            above = given.pop("stacklevel", 1) - 1
            self.logger.log(level, text, *args, stacklevel=frames + above, **given)

    def _emit_in_order(self, level: int, msg: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        state = PartialState.current()
        if state is None and env.read_world().size > 1:
            raise UnsupportedError(
                "logging in_order=True waits for the other ranks, and there is no Accelerator yet",
                hint="make an Accelerator() (or PartialState()) first, or log with main_process_only=False",
            )
        for rank in range(1 if state is None else state.num_processes):
            try:
                if rank == _rank():
                    self._emit(level, msg, args, kwargs, _FRAMES + 1)
            finally:
                if state is not None:
                    state.wait_for_everyone()

    def warning_once(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        """A warning that this process gives once, however often and from wherever it is asked to."""
        key = self.logger.name, f"{msg}|{args}"
        if key not in _said:
            _said.add(key)
            self.log(logging.WARNING, msg, *args, **{**kwargs, "stacklevel": kwargs.get("stacklevel", 1) + 1})


def get_logger(name: str, log_level: str | int | None = None) -> MultiProcessAdapter:
    """The logger of that name, for several ranks.

    `log_level` ("DEBUG", "info", 10, ...; None: what ACCELKIT_LOG_LEVEL says, else it is left alone) becomes the level of this logger
    and of the root logger, whose handlers write. Raises SettingError for a level that there is not.
    """
    logger = logging.getLogger(name)
    wanted = env.text(LEVEL_VARIABLE) if log_level is None else log_level
    if wanted is not None:
        level = _level(wanted)
        logger.setLevel(level)
        logging.root.setLevel(level)
    return MultiProcessAdapter(logger, {})


def _level(wanted: str | int) -> int:
    if isinstance(wanted, int):
        return wanted
    found = logging.getLevelName(wanted.upper())
    if isinstance(found, int):
        return found
    raise SettingError(
        f"log level {wanted!r} is not known", hint="levels are DEBUG, INFO, WARNING, ERROR, CRITICAL (or their numbers)"
    )


def _rank() -> int:
    state = PartialState.current()
    return env.read_world().rank if state is None else state.process_index
