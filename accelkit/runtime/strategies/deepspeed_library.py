"""DeepSpeed's library itself: there, new enough, quiet, able to compile; and what is told to it outside of its config."""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from torch import nn

from accelkit.runtime.errors import MissingPackageError, SettingError, UnsupportedError

OLDEST: Final = (0, 18)


def load() -> Any:
    """DeepSpeed. Raises MissingPackageError where it is missing, UnsupportedError where it is too old."""
    try:
        import deepspeed
    except ImportError as error:
        raise MissingPackageError(
            f"strategy 'deepspeed' needs the package deepspeed ({error})",
            hint="pip install deepspeed; in an image, add deepspeed to its requirements: kit build NAME --requirements FILE",
        ) from error
    version = tuple(int(part) for part in deepspeed.__version__.split("+")[0].split(".")[:2])
    if version < OLDEST:
        raise UnsupportedError(
            f"deepspeed {deepspeed.__version__} is too old",
            hint=f"pip install 'deepspeed>={'.'.join(map(str, OLDEST))}'",
        )
    _quieten()
    return deepspeed


def _quieten() -> None:
    """Leave out what DeepSpeed says whatever a script does: what it has built, names that torch gives up, optimizers it has no list of."""
    logger = logging.getLogger("DeepSpeed")
    logger.setLevel(logging.WARNING)
    if _is_news not in logger.filters:
        logger.addFilter(_is_news)
    warnings.filterwarnings("ignore", "`torch.distributed.", FutureWarning, r"torch\.distributed")


def _is_news(record: logging.LogRecord) -> bool:
    told = record.getMessage()
    return "untested optimizer" not in told and "learning rate from scheduler before it has started" not in told


@contextmanager
def compiling() -> Iterator[None]:
    """A block in which DeepSpeed may compile. Raises UnsupportedError where the machine cannot."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        if "JIT load" in str(error) or "ninja" in str(error).lower() or "Error building extension" in str(error):
            raise UnsupportedError(
                f"DeepSpeed could not compile one of its parts: {error}",
                hint="it needs ninja and a C++ compiler: pip install ninja, and on Debian and Ubuntu apt-get install g++",
            ) from error
        raise


def keep_whole(model: nn.Module, config: Mapping[str, Any], names: str | None) -> None:
    """Have stage 3 gather each module of these classes (names with commas) as one. Raises SettingError for a class that is not there."""
    if names is None or config["zero_optimization"]["stage"] != 3:
        return
    from deepspeed.utils import set_z3_leaf_modules

    there = {type(one).__name__: type(one) for one in model.modules()}
    wanted = [name.strip() for name in names.split(",")]
    missing = [name for name in wanted if name not in there]
    if missing:
        raise SettingError(
            f"transformer_moe_cls_names: {', '.join(missing)} is no class of a module of the model",
            hint=f"it has {', '.join(sorted(there))}",
        )
    set_z3_leaf_modules(model, [there[name] for name in wanted])
