"""Random generators: seeding all of them, and making a process deterministic."""

import hashlib
import random
import sys
import types
from collections.abc import Mapping
from typing import Any

import torch

from accelkit.runtime import devices, env
from accelkit.runtime.state import PartialState

_MASK_32: int = 2**32 - 1


def set_seed(seed: int, device_specific: bool = False, deterministic: bool = False) -> None:
    """Seed the generators of Python, numpy (where it is installed), torch and all devices.

    `device_specific` adds the rank, so that ranks draw different numbers; without it all ranks draw the same.
    `deterministic` also makes torch choose deterministic algorithms. Raises SettingError for a wrong environment.
    """
    if device_specific:
        seed += _rank()
    random.seed(seed)
    numpy = _numpy()
    if numpy is not None:
        numpy.random.seed(seed & _MASK_32)
    torch.manual_seed(seed)  # all devices that torch itself knows, too
    state = PartialState.current()
    if state is not None:
        devices.seed(seed, state.device)
    if deterministic:
        make_deterministic()


def make_deterministic() -> None:
    """Same input, same bits, on the same hardware: deterministic algorithms, and one thread unless OMP_NUM_THREADS says else."""
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    if torch.cuda.is_available():
        env.fix_cublas_workspace()
    if not env.threads_are_set():
        torch.set_num_threads(1)


def mix(seed: int, number: int) -> int:
    """A seed for the `number`-th use of `seed`: neighbours share nothing (SplitMix64's finaliser). Never negative."""
    value = (seed + (number + 1) * 0x9E3779B97F4A7C15) & (2**64 - 1)
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return (value ^ (value >> 31)) & (2**63 - 1)


def draw_seed() -> int:
    """A number from torch's CPU generator, which it advances by one draw."""
    return int(torch.empty((), dtype=torch.int64).random_().item())


def capture(device: torch.device) -> dict[str, Any]:
    """The state of all generators of this process: Python's, torch's, those of `device`'s type, and numpy's where it was imported.

    Made of numbers, texts, tensors and containers of them.
    """
    state: dict[str, Any] = {"random_state": random.getstate(), "torch_manual_seed": torch.get_rng_state()}
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        state["numpy_random_seed"] = _plain(numpy.random.get_state(legacy=False))
    if device.type != "cpu":
        state[f"torch_{device.type}_manual_seed"] = devices.generators(device).get_rng_state(device)
    return state


def restore(state: Mapping[str, Any], device: torch.device) -> None:
    """Put all generators where :func:`capture` found them; those that it did not see stay."""
    version, words, gauss = state["random_state"]
    random.setstate((version, tuple(words), gauss))
    torch.set_rng_state(state["torch_manual_seed"])
    if "numpy_random_seed" in state:
        numpy = _numpy()
        if numpy is not None:
            numpy.random.set_state(state["numpy_random_seed"])
    of_device = state.get(f"torch_{device.type}_manual_seed")
    if of_device is not None:
        devices.generators(device).set_rng_state(of_device, device)


def derive(state: Mapping[str, Any], rank: int) -> None:
    """Seed all generators for a rank that has no state of its own: a function of another rank's state and of `rank`."""
    digest = hashlib.sha256(bytes(state["torch_manual_seed"].tolist())).digest()
    set_seed(mix(int.from_bytes(digest[:8], "little"), rank))


def _plain(state: Any) -> Any:
    """A state of numpy's with lists for arrays."""
    if isinstance(state, Mapping):
        return {name: _plain(value) for name, value in state.items()}
    return state.tolist() if hasattr(state, "tolist") else state


def _rank() -> int:
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else env.read_world().rank


def _numpy() -> types.ModuleType | None:
    try:
        import numpy  # noqa: ICN001  (handed on, not used here)
    except ImportError:
        return None
    return numpy
