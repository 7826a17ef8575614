"""The XLA device (TPUs, and the CPU to try a script out), by torch_xla: what a process has of it, its random generator, the end of a step.

A process alone has all devices that it sees, as one: the compiler divides the work among them (SPMD). Of several processes each has one.
torch_xla is imported when a process takes the device, and never otherwise.
"""

import importlib.metadata
import importlib.util
import sys
from typing import Any, Final

import torch

from accelkit.runtime import env, structure
from accelkit.runtime.errors import MissingPackageError, UnsupportedError

VARIABLE: Final = "PJRT_DEVICE"
"""What torch_xla computes on: TPU or CPU. Where it is set, XLA is the device."""
_HINT: Final = "use the image tpu, or: pip install torch==2.9.0 torch_xla==2.9.0; without XLA: unset PJRT_DEVICE"


def is_available() -> bool:
    """Whether this process is told to use XLA, and torch_xla is there."""
    return env.text(VARIABLE) is not None and importlib.util.find_spec("torch_xla") is not None


def supports(precision: str) -> bool:
    """Whether a precision can be computed."""
    return precision in ("no", "bf16", "fp16")


def require() -> Any:
    """The library. Raises MissingPackageError where it is not installed, UnsupportedError where it is made for another torch."""
    try:
        found = importlib.metadata.version("torch_xla")
    except importlib.metadata.PackageNotFoundError:
        raise MissingPackageError(
            "the XLA device needs torch_xla, which is not installed here",
            hint=_HINT,
        ) from None
    told = f"torch_xla {found} is made for torch {_release(found)}, and this is torch {torch.__version__}"
    if _release(found) != _release(torch.__version__):
        raise UnsupportedError(told, hint=_HINT)
    try:
        import torch_xla
    except (ImportError, OSError) as error:
        raise UnsupportedError(f"torch_xla {found} cannot be imported: {error}", hint=_HINT) from error
    return torch_xla


def _release(version: str) -> str:
    return ".".join(version.split(".")[:2])


def place(world: env.World) -> torch.device:
    """The device of this process.

    Raises UnsupportedError where XLA has none, or where it does not see all processes of the run: each would train for itself.
    """
    library = require()
    try:
        device = _take_one(world) if world.size > 1 else _take_all(library)
    except UnsupportedError:
        raise
    except (OSError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise UnsupportedError(
            f"{VARIABLE}={env.text(VARIABLE)}: XLA finds no device: {reason}",
            hint=f"{VARIABLE}=CPU tries a script out on a machine without TPUs",
        ) from error
    seed(torch.initial_seed(), device)
    return device


def _take_one(world: env.World) -> torch.device:
    """The device of one process of several."""
    import torch_xla
    from torch_xla import runtime
    from torch_xla._internal import pjrt

    if runtime.device_type() == "CPU":
        _refuse(world, "1: on CPUs XLA has no way from one process to another")
    pjrt.initialize_multiprocess(world.local_rank, env.local_world_size(world.size))
    device: torch.device = torch_xla.device()
    if runtime.world_size() != world.size:
        _refuse(world, str(runtime.world_size()))
    return device


def _take_all(library: Any) -> torch.device:
    """One device made of all that this process sees, unless the script used one before."""
    from torch_xla import runtime

    if not runtime.is_spmd() and not library._XLAC._xla_get_spmd_config_is_locked():  # noqa: SLF001  (shown nowhere else)
        runtime.use_spmd()
    elif not runtime.is_spmd() and runtime.global_runtime_device_count() > 1:
        raise UnsupportedError(
            f"torch_xla was used before, with one of {runtime.global_runtime_device_count()} devices: the others would idle",
            hint="make the Accelerator (or PartialState) before the first XLA tensor",
        )
    device: torch.device = library.device()
    count_devices()  # which opens them: what is not there is said now
    return device


def _refuse(world: env.World, seen: str) -> None:
    raise UnsupportedError(
        f"this run has {world.size} processes, and XLA sees {seen}",
        hint="start one process on a machine: it has all its devices (on CPUs: as many as CPU_NUM_DEVICES says); or one for each chip",
    )


def count_devices() -> int:
    """Devices that work on the tensors of this process."""
    from torch_xla import runtime

    return runtime.global_runtime_device_count() if runtime.is_spmd() else 1


def end_step() -> None:
    """Have everything computed that was asked for: until then operations are only written down."""
    import torch_xla

    torch_xla.sync()


def get_rng_state(device: torch.device) -> torch.Tensor:
    """The state of the device's random generator: eight bytes."""
    from torch_xla.core import xla_model

    return torch.tensor(list(xla_model.get_rng_state(str(device)).to_bytes(8, "little")), dtype=torch.uint8)


def set_rng_state(state: torch.Tensor, device: torch.device) -> None:
    """Put the device's random generator where :func:`get_rng_state` found it."""
    from torch_xla.core import xla_model

    xla_model.set_rng_state(int.from_bytes(bytes(state.tolist()), "little"), str(device))


def seed(number: int, device: torch.device) -> None:
    """Seed the device's random generator, which torch does not know."""
    from torch_xla.core import xla_model

    xla_model.set_rng_state(number % 2**63, str(device))


def on_cpu(data: Any) -> Any:
    """A structure with the device's tensors copied to the CPU, for files that any machine reads; those that share memory share the copy."""
    if "torch_xla" not in sys.modules:
        return data
    copies: dict[Any, torch.Tensor] = {}

    def copied(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.device.type != "xla":
            return leaf
        key = (leaf.untyped_storage()._cdata, leaf.shape, leaf.dtype)  # noqa: SLF001  (it has no address)
        if key not in copies:
            copies[key] = leaf.detach().cpu()
        return copies[key]

    return structure.map_leaves(copied, data)
