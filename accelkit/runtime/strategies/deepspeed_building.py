"""Models that DeepSpeed divides while they are built, so that no rank ever holds a whole one: stage 3 alone.

`deepspeed.zero.Init` does it for what is built inside of it. transformers enters that by itself in `from_pretrained` and `from_config` as
soon as it knows of a config of stage 3, and reads checkpoints into the parts.
"""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from typing import Any

from accelkit.runtime.strategies.deepspeed_plugin import HfDeepSpeedConfig


class Building:
    """How models are built under one config."""

    def __init__(self, config: dict[str, Any]) -> None:
        """Args: `config` without any "auto"."""
        self._config = HfDeepSpeedConfig(config)

    def begin(self, *, divides: bool) -> None:
        """From now on, and as long as this object is kept, have transformers divide what it builds, or not.

        What the script itself has told transformers stays.
        """
        if not divides and "transformers.integrations.deepspeed" not in sys.modules:
            return
        before = _tell(self._config if divides else None)
        if not divides and not isinstance(before, HfDeepSpeedConfig):
            _tell(before)

    @contextmanager
    def block(self, *, divides: bool) -> Iterator[None]:
        """A block in which models are divided as they are built, or are not."""
        before = _tell(self._config if divides else None)
        try:
            with _divided(self._config.config) if divides else _whole():
                yield
        finally:
            _tell(before)


def _divided(config: dict[str, Any]) -> AbstractContextManager[Any]:
    import deepspeed

    block: AbstractContextManager[Any] = deepspeed.zero.Init(config_dict_or_path=config)
    return block


@contextmanager
def _whole() -> Iterator[None]:
    """Inside of a block that divides: a part of it that does not."""
    from deepspeed.runtime.zero import partition_parameters

    partition_parameters.shutdown_init_context()
    try:
        yield
    finally:
        partition_parameters.restore_init_context()


def _tell(config: Any) -> Any:
    """Have transformers, where it is installed, go by a config, or by none; returns the one before. It keeps no reference that counts."""
    if find_spec("transformers") is None:
        return None
    import transformers.integrations.deepspeed as found

    integration: Any = found
    reference = integration._hf_deepspeed_config_weak_ref  # noqa: SLF001  (there is no public word for it)
    integration.unset_hf_deepspeed_config()
    if config is not None:
        integration.set_hf_deepspeed_config(config)
    return None if reference is None else reference()
