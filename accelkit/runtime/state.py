"""The state of a process: its rank, its device, its process group. One object per process, however often it is made."""

import atexit
import sys
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from accelkit.runtime import devices, env, machine, ports
from accelkit.runtime.collectives.local import LocalCollectives
from accelkit.runtime.collectives.nested import NestedCollectives
from accelkit.runtime.collectives.torch_dist import CopyingCollectives, TorchCollectives
from accelkit.runtime.collectives.watch import PATIENCE, Watch
from accelkit.runtime.errors import SettingError
from accelkit.runtime.leaving import settle
from accelkit.runtime.processes import ProcessActions
from accelkit.runtime.settings import DistributedType


class PartialState(ProcessActions):
    """This process among all of the run. The first call decides everything; later calls return the same object.

    Without WORLD_SIZE in the environment this is the only process and no process group is made. A process group that the
    script has made itself is used as it is, and left to the script.

    Args:
        cpu: use the CPU although there is another device.
        strategy: how models will be trained, where that decides the device; None: what the launch says.
        backend, init_method, timeout: as in `InitProcessGroupKwargs`.

    Raises SettingError for a wrong environment, UnsupportedError when there are more local ranks than devices.
    """

    _shared: "PartialState | None" = None

    def __new__(cls, cpu: bool = False, strategy: str | None = None, **init_kwargs: Any) -> "PartialState":  # noqa: ARG004, PYI034
        """The one object; made at the first call."""
        return cls._the_one()

    @classmethod
    def _the_one(cls) -> "PartialState":
        if PartialState._shared is None:
            PartialState._shared = object.__new__(PartialState)
        return PartialState._shared

    def __reduce__(self) -> tuple[Any, ...]:
        return PartialState._the_one, ()  # as it is where it is unpickled: empty in a process that has made none

    def __deepcopy__(self, memo: dict[int, Any]) -> "PartialState":
        return self

    def __init__(self, cpu: bool = False, strategy: str | None = None, **init_kwargs: Any) -> None:
        if self.initialized:
            return
        try:
            self._start(cpu, strategy, **init_kwargs)
        except BaseException:
            self.__dict__.clear()
            raise

    def _start(self, cpu: bool, strategy: str | None, **init_kwargs: Any) -> None:
        self.world = _adopted_world() or env.read_world()
        self.defaults = env.read_defaults()
        """What the launch says of settings."""
        if self.world.rank == 0:
            machine.check_os_kernel()
        self.kind = devices.choose(cpu=cpu, strategy=strategy or self.defaults.settings.strategy)
        self._init_kwargs = init_kwargs
        self._owns_group = False
        self.debug = False
        """For scripts that set it. The ranks' shapes are compared before every operation in any case."""
        self.fork_launched = env.is_fork_launched()
        """Whether this process was forked from the one that launched it, as `notebook_launcher` does."""
        self._device = devices.place(self.kind, self.world)
        self.operations = NestedCollectives(LocalCollectives(), torch.device("cpu"))
        """Collective operations on nested structures."""
        if self.world.size > 1:
            self.start_group()

    def start_group(self) -> None:
        """Make the process group, unless there is one. A process alone needs one only for what insists on a group."""
        is_there = dist.is_initialized()
        if not is_there:
            self._init_group(**self._init_kwargs)
            self._owns_group = True
            atexit.register(_destroy_on_the_way_out)
        if self.world.size > 1 and not (is_there and self.operations.carrier.size > 1):
            limit = self._init_kwargs.get("timeout") or _LIMIT
            self.operations = NestedCollectives(
                _carrier(self.kind), _control_device(self._device), self._watch(limit), limit.total_seconds()
            )

    def _watch(self, limit: timedelta) -> Watch:
        """Who says which ranks are missing when this one waits."""
        patience = min(PATIENCE, limit.total_seconds() / 3)
        store = dist.distributed_c10d._get_default_store()  # noqa: SLF001  (of a group that the script made, too)
        return Watch(self.world.rank, self.world.size, store, reach=env.master_addr(), patience=patience)

    def _stop_watch(self) -> None:
        if self.operations.watch is not None:
            self.operations.watch.stop()

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
        elif self.world.rank > 0:
            _await_rank_0((timeout or _LIMIT).total_seconds())
        dist.init_process_group(**arguments)

    def destroy_process_group(self, group: Any = None) -> None:
        """Take down a process group; without one, the group of all ranks if this library made it."""
        if not dist.is_initialized():
            return
        if group is not None:
            dist.destroy_process_group(group)
        elif self._owns_group:
            self._stop_watch()
            dist.destroy_process_group()
            self._owns_group = False

    @classmethod
    def current(cls) -> "PartialState | None":
        """The one object; None before it was made, and after it was reset."""
        found = PartialState._shared
        return found if found is not None and found.initialized else None

    @classmethod
    def _reset_state(cls) -> None:
        """Empty the shared object, its process group included; the next call that makes one starts anew."""
        found = cls.current()
        if found is not None:
            found.destroy_process_group()
            found.__dict__.clear()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(_missing("PartialState", name, was_reset=not self.__dict__))

    def __repr__(self) -> str:
        return _described(self, "distributed_type", "backend", *_PLACE)

    @property
    def initialized(self) -> bool:
        """Whether the state can be used: false only after a reset."""
        return bool(self.__dict__)

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
        return self.kind.distributed_type if self.use_distributed else self.kind.alone

    @property
    def default_device(self) -> torch.device:
        """The device that a process alone would take."""
        return torch.device(devices.choose(cpu=False).name)

    def set_device(self) -> None:
        """Make this rank's device the current one of its type."""
        devices.place(self.kind, self.world)

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
    distributed_type: DistributedType
    partial: PartialState
    is_fsdp2: bool = False
    """Whether models are sharded by torch's `fully_shard`."""
    parallelism_config: Any = None
    device_mesh: Any = None
    """Layout of ranks in several dimensions, and its mesh; None where they are in one."""

    def __new__(cls, mixed_precision: str | None = None, cpu: bool = False) -> "AcceleratorState":  # noqa: PYI034
        """The one object."""
        found = cls.current()
        if found is None:
            raise SettingError("AcceleratorState is not there yet", hint="make an Accelerator() first")
        found.check(mixed_precision, cpu)
        return found

    @classmethod
    def _the_one(cls) -> "AcceleratorState":
        if AcceleratorState._shared is None:
            AcceleratorState._shared = object.__new__(AcceleratorState)
        return AcceleratorState._shared

    def __reduce__(self) -> tuple[Any, ...]:
        return AcceleratorState._the_one, ()

    def __deepcopy__(self, memo: dict[int, Any]) -> "AcceleratorState":
        return self

    @classmethod
    def settle(
        cls, partial: PartialState, mixed_precision: str, strategy_name: str, distributed_type: DistributedType
    ) -> "AcceleratorState":
        """Make the one object, or return it when it was made with the same decisions."""
        found = cls._the_one()
        if not found.initialized:
            found.partial, found.mixed_precision = partial, mixed_precision
            found.strategy_name, found.distributed_type = strategy_name, distributed_type
        elif found.strategy_name != strategy_name:
            raise SettingError(
                f"AcceleratorState has already been initialized with strategy={found.strategy_name!r}; "
                f"it cannot become {strategy_name!r}"
            )
        return found

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

    def destroy_process_group(self, group: Any = None) -> None:
        """Take down a process group; see :meth:`PartialState.destroy_process_group`. Also after a reset."""
        partial = PartialState.current()
        if partial is not None:
            partial.destroy_process_group(group)

    def require(self) -> None:
        """Raise AttributeError when the state was reset under an `Accelerator` that goes on using it."""
        if not self.initialized:
            raise AttributeError(_missing("AcceleratorState", "mixed_precision", was_reset=True))

    @property
    def initialized(self) -> bool:
        """Whether the state can be used: false only after a reset."""
        return bool(self.__dict__)

    @classmethod
    def current(cls) -> "AcceleratorState | None":
        """The one object; None before an Accelerator exists, and after a reset."""
        found = AcceleratorState._shared
        return found if found is not None and found.initialized else None

    @classmethod
    def _reset_state(cls, reset_partial_state: bool = False) -> None:
        """Empty the shared object, with `reset_partial_state` that of PartialState too."""
        if AcceleratorState._shared is not None:
            AcceleratorState._shared.__dict__.clear()
        if reset_partial_state:
            PartialState._reset_state()  # noqa: SLF001  (the name of the API family)

    def __getattr__(self, name: str) -> Any:
        if "partial" in self.__dict__ and not name.startswith("__"):
            return getattr(self.partial, name)
        raise AttributeError(_missing("AcceleratorState", name, was_reset=not self.__dict__))

    def __repr__(self) -> str:
        return _described(self, "distributed_type", "backend", *_PLACE, "mixed_precision")


def is_initialized() -> bool:
    """Whether an `Accelerator` exists in this process."""
    return AcceleratorState.current() is not None


_PATIENCE_FOR_RANK_0: Final = 10.0
"""Seconds that a rank looks for the store of rank 0 before it leaves that to torch."""
_LIMIT: Final = timedelta(minutes=30)
"""How long ranks wait for each other where nothing is said: gloo's own."""
_PLACE: Final = ("num_processes", "process_index", "local_process_index", "device")


def _missing(kind: str, name: str, *, was_reset: bool) -> str:
    """Why an attribute is not there."""
    why = f" This happens if `{kind}._reset_state()` was called: make a new Accelerator." if was_reset else ""
    return f"`{kind}` object has no attribute `{name}`.{why}"


def _described(state: Any, *names: str) -> str:
    if not state.initialized:
        return f"{type(state).__name__}(reset)"
    values = {name: getattr(state, name) for name in names}
    shown = (f"{name}={getattr(value, 'value', value)}" for name, value in values.items())
    return f"{type(state).__name__}({', '.join(shown)})"


def _adopted_world() -> env.World | None:
    """The world of a process group that the script made; None without one."""
    if not dist.is_initialized():
        return None
    told = env.read_world()
    return env.World(rank=dist.get_rank(), size=dist.get_world_size(), local_rank=told.local_rank)


def _await_rank_0(limit: float) -> None:
    """Until rank 0 listens for the others, but not for long: torch tells what is wrong. `limit`: of the group, in seconds."""
    address, port = env.master_addr(), env.master_port()
    if address and port:
        ports.await_listener(address, port, min(limit / 4, _PATIENCE_FOR_RANK_0))


def _carrier(kind: devices.Kind) -> TorchCollectives:
    """What carries tensors: those that the group's backends do not know as copies on the CPU."""
    return TorchCollectives() if kind.is_torch else CopyingCollectives()


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
    settle()
