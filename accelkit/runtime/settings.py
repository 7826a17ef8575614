"""Settings that a script hands to `Accelerator`: enumerations, handlers of keyword arguments, plug-ins."""

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import Enum
from numbers import Integral
from typing import Any, TypeVar

from accelkit.runtime.enumerations import DDPCommunicationHookType, DynamoBackend
from accelkit.runtime.errors import SettingError


class DistributedType(str, Enum):
    """How ranks work together. Compares equal to its text. Names that no strategy here has are there to be compared with."""

    NO = "NO"
    MULTI_CPU = "MULTI_CPU"
    MULTI_GPU = "MULTI_GPU"
    MULTI_XPU = "MULTI_XPU"
    MULTI_NPU = "MULTI_NPU"
    MULTI_MLU = "MULTI_MLU"
    MULTI_SDAA = "MULTI_SDAA"
    MULTI_MUSA = "MULTI_MUSA"
    MULTI_HPU = "MULTI_HPU"
    MULTI_NEURON = "MULTI_NEURON"
    DEEPSPEED = "DEEPSPEED"
    FSDP = "FSDP"
    MEGATRON_LM = "MEGATRON_LM"
    XLA = "XLA"


@dataclass
class KwargsHandler:
    """Keyword arguments for one thing that the library makes on the script's behalf."""

    def strategy(self) -> str | None:
        """Name of the strategy that this is for; None: for any."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """All fields and their values, as copies."""
        return copy.deepcopy(self.__dict__)

    def to_kwargs(self) -> dict[str, Any]:
        """The arguments that were given, those left at their default excluded."""
        default = type(self)()
        mine = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {name: value for name, value in mine.items() if value != getattr(default, name)}


@dataclass
class DistributedDataParallelKwargs(KwargsHandler):
    """Arguments of `torch.nn.parallel.DistributedDataParallel`, with torch's meanings and defaults."""

    dim: int = 0
    broadcast_buffers: bool = True
    bucket_cap_mb: int = 25
    find_unused_parameters: bool = False
    check_reduction: bool = False
    gradient_as_bucket_view: bool = False
    static_graph: bool = False
    comm_hook: DDPCommunicationHookType = DDPCommunicationHookType.NO
    """How gradients travel; never handed to the constructor, but registered afterwards."""
    comm_wrapper: DDPCommunicationHookType = DDPCommunicationHookType.NO
    """"fp16" or "bf16" around `comm_hook`: what the hook sends, sent in half precision."""
    comm_state_option: dict[str, Any] = field(default_factory=dict)
    """Options of PowerSGD's state, for example `matrix_approximation_rank`."""

    def to_kwargs(self) -> dict[str, Any]:
        """The constructor's arguments that were given, those left at their default excluded."""
        return {name: value for name, value in super().to_kwargs().items() if not name.startswith("comm_")}


@dataclass
class XlaKwargs(KwargsHandler):
    """How models are trained on the XLA device."""

    shard: bool | None = None
    """True: parameters, gradients and optimizer states are divided among the devices of the process. Default: each has them whole."""

    def strategy(self) -> str:
        """The one for that device."""
        return "xla"


@dataclass
class InitProcessGroupKwargs(KwargsHandler):
    """Arguments of `torch.distributed.init_process_group`."""

    backend: str | None = None
    """None: gloo on CPU, NCCL (beside gloo for what lies on the CPU) on CUDA."""
    init_method: str | None = None
    timeout: timedelta | None = None
    """How long a rank waits for the others in one operation; None: torch's own limit for the backend."""


@dataclass
class AutocastKwargs(KwargsHandler):
    """Arguments of `torch.autocast`, beside the type that the precision decides."""

    enabled: bool = True
    cache_enabled: bool | None = None


@dataclass
class GradScalerKwargs(KwargsHandler):
    """Arguments of `torch.amp.GradScaler`; used with fp16 only."""

    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    enabled: bool = True


@dataclass
class AORecipeKwargs(KwargsHandler):
    """How linear layers compute in 8-bit floats (torchao); used with fp8 only."""

    config: Any = None
    """A `torchao.float8.Float8LinearConfig`; None: one made of the two fields below."""
    module_filter_func: Callable[[Any, str], bool] | None = None
    """Takes a module and its name and says whether it is replaced; None: every linear layer but the first and the last."""
    pad_inner_dim: bool = True
    """Fill up sizes that the kernels do not take."""
    enable_fsdp_float8_all_gather: bool = True
    """Sharded weights travel in 8 bits."""


@dataclass
class GradientAccumulationPlugin(KwargsHandler):
    """How gradients of several micro-batches become one optimizer step."""

    num_steps: int | None = None
    """Micro-batches per optimizer step; None: what the launch says, else 1."""
    adjust_scheduler: bool = True
    """Count a scheduler's skipped calls while accumulating."""
    sync_with_dataloader: bool = True
    """The last batch of a loader always completes a window."""
    sync_each_batch: bool = False
    """Synchronise gradients in every backward: more traffic, less memory."""

    def __post_init__(self) -> None:
        """Refuse a number of steps that no loop can make."""
        if self.num_steps is not None:
            check_num_steps(self.num_steps)


def check_num_steps(steps: Any) -> None:
    """Raise SettingError for what is no number of micro-batches per optimizer step."""
    if not isinstance(steps, Integral) or int(steps) < 1:
        raise SettingError(
            f"gradient_accumulation_steps={steps!r}: must be a whole number, at least 1",
            hint="give a number, or leave it out for what the launch says (else 1)",
        )


@dataclass
class DataLoaderConfiguration:
    """How prepared loaders divide data among ranks."""

    split_batches: bool = False
    """True: a loader's batch size is that of all ranks together, and must divide by their number."""
    dispatch_batches: bool | None = None
    """True: rank 0 reads for all ranks and hands out their batches. False: every rank reads, and keeps its own share. None: rank 0
    reads where the data is a stream that is put on the device, since streams may differ between processes."""
    even_batches: bool = True
    """Fill the tail with the epoch's first samples, so that every rank has as many full batches."""
    use_seedable_sampler: bool = False
    """Take the seed of shuffling from `torch.initial_seed()` instead of drawing it: nothing is drawn then."""
    data_seed: int | None = None
    """Seed of shuffling; None: drawn from torch's generator when the loader is prepared."""
    non_blocking: bool = False
    """Copy batches to the device without waiting (with pinned memory)."""
    use_stateful_dataloader: bool = False
    """Make prepared loaders torchdata's StatefulDataLoader, which must be installed. All have state_dict and load_state_dict anyway."""


ACTIVITIES = ("cpu", "cuda", "xpu", "mtia", "hpu")
"""What torch's profiler may record, in the words of `ProfileKwargs`."""


@dataclass
class ProfileKwargs(KwargsHandler):
    """How `Accelerator.profile` records; arguments of `torch.profiler.profile` where nothing else is said."""

    activities: list[str] | None = None
    """Any of cpu, cuda, xpu, mtia, hpu; None: what torch can record here."""
    schedule_option: dict[str, int] | None = None
    """Arguments of `torch.profiler.schedule` (wait, warmup, active, repeat, skip_first); None: record everything."""
    on_trace_ready: Callable[..., Any] | None = None
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    with_modules: bool = False
    output_trace_dir: str | None = None
    """Folder for a Chrome trace per rank, `profile_RANK.json`; None: none is written."""

    def build(self) -> Any:
        """The profiler. Raises SettingError for an activity or an option of the schedule that there is not."""
        from torch import profiler

        rest = super().to_kwargs()
        for name in ("activities", "schedule_option", "output_trace_dir"):
            rest.pop(name, None)
        if self.activities is not None:
            rest["activities"] = [_activity(name) for name in self.activities]
        if self.schedule_option is not None:
            try:
                rest["schedule"] = profiler.schedule(**self.schedule_option)
            except TypeError as error:
                raise SettingError(
                    f"ProfileKwargs: schedule_option={self.schedule_option}: {error}",
                    hint="options are wait, warmup, active (all three are needed), repeat, skip_first",
                ) from error
        return profiler.profile(**rest)


def _activity(name: str) -> Any:
    """Torch's name for something that its profiler records."""
    from torch.profiler import ProfilerActivity

    found = ProfilerActivity.__members__.get(str(name).upper())
    if name not in ACTIVITIES or found is None:
        raise SettingError(
            f"ProfileKwargs: activity {name!r} is not known", hint=f"activities are {', '.join(ACTIVITIES)}"
        )
    return found


@dataclass
class TorchDynamoPlugin(KwargsHandler):
    """How prepared models are compiled; arguments of `torch.compile` where nothing else is said."""

    backend: Any = None
    """A `DynamoBackend`, a name that torch knows (in any case), or a function; None and "no": models are not compiled."""
    mode: str | None = None
    """None: torch's default mode."""
    fullgraph: bool = False
    dynamic: bool | None = None
    options: dict[str, Any] | None = None
    disable: bool = False
    use_regional_compilation: bool = False
    """Compile repeated blocks once, and the rest region by region."""

    def __post_init__(self) -> None:
        """Bring the backend's name into torch's form; refuse settings that torch cannot combine."""
        if self.mode is not None and self.options is not None:
            raise SettingError("TorchDynamoPlugin: mode and options are both given", hint="torch takes one of them")
        if isinstance(self.backend, str):
            name = str(getattr(self.backend, "value", self.backend))
            self.backend = DynamoBackend(name.upper()) if name.upper() in DynamoBackend else name
        elif self.backend is None:
            self.backend = DynamoBackend.NO

    @property
    def is_on(self) -> bool:
        """Whether models are compiled."""
        return self.backend is not DynamoBackend.NO

    def to_kwargs(self) -> dict[str, Any]:
        """The arguments of `torch.compile` that were given."""
        given = super().to_kwargs()
        given.pop("use_regional_compilation", None)
        if isinstance(self.backend, DynamoBackend):
            given["backend"] = self.backend.value.lower()
        return given


HANDLERS: tuple[type[KwargsHandler], ...] = (
    DistributedDataParallelKwargs,
    InitProcessGroupKwargs,
    AutocastKwargs,
    GradScalerKwargs,
    AORecipeKwargs,
    ProfileKwargs,
    XlaKwargs,
)

H = TypeVar("H", bound=KwargsHandler)


class Handlers:
    """The handlers that a script gave, by class; one that was not given is made of defaults."""

    def __init__(self, given: list[KwargsHandler] | None = None, plugins: Iterable[KwargsHandler | None] = ()) -> None:
        """Args: `plugins`, those that have an argument of their own; None among them are left out."""
        self._by_class: dict[type[KwargsHandler], KwargsHandler] = {
            type(one): one for one in plugins if one is not None
        }
        for handler in given or []:
            if not isinstance(handler, HANDLERS):
                known = ", ".join(kind.__name__ for kind in HANDLERS)
                raise SettingError(f"kwargs_handlers: {type(handler).__name__} is not one", hint=f"known are {known}")
            if type(handler) in self._by_class:
                raise SettingError(f"kwargs_handlers: {type(handler).__name__} is given twice")
            self._by_class[type(handler)] = handler

    def strategy(self) -> str | None:
        """The strategy that a handler is for; None where none says."""
        found = {name: type(one).__name__ for one in self._by_class.values() if (name := one.strategy()) is not None}
        if len(found) > 1:
            raise SettingError(f"{' and '.join(found.values())} are for different strategies: {', '.join(found)}")
        return next(iter(found), None)

    def given(self, kind: type[H]) -> H | None:
        """The handler of a class that the script gave; None where it gave none."""
        found = self._by_class.get(kind)
        return found if isinstance(found, kind) else None

    def get(self, kind: type[H]) -> H:
        """The handler of a class."""
        return self.given(kind) or kind()
