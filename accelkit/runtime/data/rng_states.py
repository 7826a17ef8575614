"""The global generators that samplers draw from, as one: torch's on the CPU, Python's, and numpy's where it is in use."""

import random
import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch

_MASK_32: Final = 2**32 - 1


class States(NamedTuple):
    """What can be done with a group of generators. Those on devices are in none."""

    capture: Callable[[], Any]
    restore: Callable[[Any], Any]
    seed: Callable[[int], Any]


def _capture_all() -> tuple[Any, ...]:
    numpy = sys.modules.get("numpy")
    return torch.get_rng_state(), random.getstate(), None if numpy is None else numpy.random.get_state()


def _restore_all(states: tuple[Any, ...]) -> None:
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    if states[2] is not None:
        sys.modules["numpy"].random.set_state(states[2])


def _seed_all(value: int) -> None:
    torch.default_generator.manual_seed(value)
    random.seed(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(value & _MASK_32)


TORCH: Final = States(torch.get_rng_state, torch.set_rng_state, torch.default_generator.manual_seed)
ALL: Final = States(_capture_all, _restore_all, _seed_all)
