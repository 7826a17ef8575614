"""The state of a process: its rank, its device, its process group. One object per process, however often it is made."""

import atexit
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from accelkit.runtime import devices, env
from accelkit.runtime.collectives.local import LocalCollectives
from accelkit.runtime.collectives.nested import NestedCollectives
from accelkit.runtime.collectives.torch_dist import TorchCollectives
from accelkit.runtime.errors import SettingError
from accelkit.runtime.processes import ProcessActions
from accelkit.runtime.settings import DistributedType


class PartialState(ProcessActions):
    """This process among all of the run. The first call decides everything; later calls return the same object.

    Without WORLD_SIZE in the environment this is the only process and no process group is made. A process group that the
    script has made itself is used as it is, and left to the script.

    Args:
        cpu: use the CPU although there is another device.
        backend, init_method, timeout: as in `InitProcessGroupKwargs`.

    Raises SettingError for a wrong environment, UnsupportedError when there are more local ranks than devices.
    """

    _shared: "PartialState | None" = None

    def __new__(cls, cpu: bool = False, **init_kwargs: Any) -> "PartialState":  # noqa: ARG004, PYI034
        """The one object; made at the first call."""
        return PartialState._shared or super().__new__(cls)

    def __init__(self, cpu: bool = False, **init_kwargs: Any) -> None:
        if PartialState._shared is None:
            self._start(cpu, **init_kwargs)
            PartialState._shared = self

    def _start(self, cpu: bool, **init_kwargs: Any) -> None:
        self.defaults = env.read_defaults()
        """What the launch says of settings."""
        self.world = _adopted_world() or env.read_world()
        self.kind = devices.choose(cpu=cpu)
        self._init_kwargs = init_kwargs
        self._owns_group = False
        self._device = devices.place(self.kind, self.world.local_rank)
        self.operations = NestedCollectives(LocalCollectives(), torch.device("cpu"))
        """Collective operations on nested structures."""
        if self.world.size > 1:
            self.start_group()

    def start_group(self) -> None:
        """Make the process group, unless there is one. A process alone needs one only for what insists on a group."""
        if not dist.is_initialized():
            self._init_group(**self._init_kwargs)
            self._owns_group = True
            atexit.register(_destroy_on_the_way_out)
        carrier = TorchCollectives() if self.world.size > 1 else LocalCollectives()
        self.operations = NestedCollectives(carrier, _control_device(self._device))

    def _init_group(
        self, backend: str | None = None, init_method: str | None = None, timeout: timedelta | None = None
    ) -> None:
        arguments: dict[str, Any] = {"backend": backend or self.kind.group, "timeout": timeout}
        if self.kind.indexed:
            arguments["device_id"] = self._device
        if self.world.size == 1:
            arguments |= {"store": _lone_store(), "rank": 0, "world_size": 1}
        elif init_method is not None:
            arguments |= {"init_method": init_method, "rank": self.world.rank, "world_size": self.world.size}
        dist.init_process_group(**arguments)

    def destroy_process_group(self) -> None:
        """Take down the process group, if this library made it."""
        if self._owns_group and dist.is_initialized():
            dist.destroy_process_group()
        self._owns_group = False

    @classmethod
    def current(cls) -> "PartialState | None":
        """The one object; None before it was made."""
        return PartialState._shared

    @classmethod
    def _reset_state(cls) -> None:
        """Forget the shared object, its process group included; the next one made starts anew."""
        if PartialState._shared is not None:
            PartialState._shared.destroy_process_group()
        PartialState._shared = None

    @property
    def initialized(self) -> bool:
        """Always true: a state that exists can be used."""
        return True

    @property
    def num_processes(self) -> int:
        """Ranks of the run."""
        return self.world.size

    @property
    def process_index(self) -> int:
        """This rank, from 0."""
        return self.world.rank

    @property
    def local_process_index(self) -> int:
        """This rank among those of its node, from 0."""
        return self.world.local_rank

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        return self._device

    @property
    def backend(self) -> str | None:
        """The backend by which this rank's tensors travel; None for a process alone."""
        return self.kind.backend if self.use_distributed else None

    @property
    def distributed_type(self) -> DistributedType:
        """How ranks work together."""
        return self.kind.distributed_type if self.use_distributed else DistributedType.NO

    def wait_for_everyone(self) -> None:
        """Return when all ranks have called it."""
        self.operations.barrier()


class AcceleratorState:
    """What `Accelerator` decided beside `PartialState`, whose attributes it shows too. Made by `Accelerator`; then one object.

    Raises SettingError when it is made before an `Accelerator`, or asked for another precision than the one in force.
    """

    _shared: "AcceleratorState | None" = None

    mixed_precision: str
    strategy_name: str
    partial: PartialState

    def __new__(cls, mixed_precision: str | None = None, cpu: bool = False) -> "AcceleratorState":  # noqa: PYI034
        """The one object."""
        found = cls._shared
        if found is None:
            raise SettingError("AcceleratorState is not there yet", hint="make an Accelerator() first")
        found.check(mixed_precision, cpu)
        return found

    @classmethod
    def settle(cls, partial: PartialState, mixed_precision: str, strategy_name: str) -> "AcceleratorState":
        """Make the one object, or return it when it was made with the same decisions."""
        if cls._shared is None:
            made = super().__new__(cls)
            made.partial, made.mixed_precision, made.strategy_name = partial, mixed_precision, strategy_name
            cls._shared = made
        elif cls._shared.strategy_name != strategy_name:
            raise SettingError(
                f"AcceleratorState has already been initialized with strategy={cls._shared.strategy_name!r}; "
                f"it cannot become {strategy_name!r}"
            )
        return cls._shared

    def check(self, mixed_precision: str | None, cpu: bool) -> None:
        """Refuse what contradicts the decisions in force."""
        if mixed_precision is not None and mixed_precision != self.mixed_precision:
            raise SettingError(
                f"AcceleratorState has already been initialized with mixed_precision={self.mixed_precision!r}; "
                f"it cannot become {mixed_precision!r}",
                hint="use one precision for all Accelerators of a process",
            )
        if cpu and self.partial.device.type != "cpu":
            raise SettingError(
                f"AcceleratorState has already been initialized on {self.partial.device}; cpu=True comes too late",
                hint="give cpu=True to the first Accelerator of the process",
            )

    @classmethod
    def current(cls) -> "AcceleratorState | None":
        """The one object; None before an Accelerator exists."""
        return cls._shared

    @classmethod
    def _reset_state(cls, reset_partial_state: bool = False) -> None:
        """Forget the shared object, with `reset_partial_state` that of PartialState too."""
        cls._shared = None
        if reset_partial_state:
            PartialState._reset_state()  # noqa: SLF001  (the name of the API family)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "partial" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.partial, name)


def _adopted_world() -> env.World | None:
    """The world of a process group that the script made; None without one."""
    if not dist.is_initialized():
        return None
    told = env.read_world()
    return env.World(rank=dist.get_rank(), size=dist.get_world_size(), local_rank=told.local_rank)


def _lone_store() -> Any:
    """Where a group of one meets itself: no address, no port."""
    made: Any = dist.__dict__["HashStore"]()
    return made


def _control_device(device: torch.device) -> torch.device:
    """Where small tensors travel: the CPU, unless the group has no backend for it."""
    return torch.device("cpu") if "cpu:" in str(dist.get_backend_config()) else device


def _destroy_on_the_way_out() -> None:
    """Take the group down at exit. A rank that ends by an exception leaves it: the others must not be waited for."""
    state = PartialState.current()
    if getattr(sys, "last_value", None) is None and state is not None:
        state.destroy_process_group()
