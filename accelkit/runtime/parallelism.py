"""How the ranks of a run are laid out in several dimensions: copies of the model, shards of it, parts of its layers."""

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from accelkit.runtime.errors import SettingError, UnsupportedError
from accelkit.runtime.settings import KwargsHandler

AXES: Final = ("dp_replicate", "dp_shard", "cp", "sp", "tp")
"""Axes of the mesh, the outermost first: ranks that talk most are next to each other."""


@dataclass
class TorchTensorParallelConfig(KwargsHandler):
    """How layers are divided among the ranks of the tensor-parallel axis."""

    enable_async_tp: bool = False
    """Overlap the exchange with the multiplication; needs CUDA and torch.compile."""
    plan: Mapping[str, Any] | None = None
    """Name of a module, `*` for one part of it -> "colwise", "rowwise", "colwise_rep", "rowwise_rep", "sequence_parallel" or a
    `ParallelStyle` of torch. None: the plan that the model itself brings."""


@dataclass
class TorchContextParallelConfig(KwargsHandler):
    """How sequences are divided among the ranks of the context-parallel axis."""

    cp_comm_strategy: str = "allgather"
    """"allgather" or "alltoall"."""


@dataclass
class ParallelismConfig(KwargsHandler):
    """Sizes of the axes along which ranks are laid out; their product is the number of ranks.

    Raises SettingError (a ValueError) for sizes that are none, or cannot be combined.
    """

    dp_replicate_size: int = 1
    """Copies of the (sharded) model, each with data of its own."""
    dp_shard_size: int = 1
    """Ranks among which each copy is sharded, each with data of its own."""
    tp_size: int = 1
    """Ranks that share each layer, and a batch."""
    cp_size: int = 1
    """Ranks that share each sequence of a batch."""
    cp_backend: str = "torch"
    sp_size: int = 1
    sp_backend: str = "deepspeed"
    tp_handler: TorchTensorParallelConfig | None = None
    cp_handler: TorchContextParallelConfig | None = None
    sp_handler: Any = None

    def __post_init__(self) -> None:
        """Refuse what makes no layout."""
        small = [f"{axis}_size={size!r}" for axis, size in self.sizes.items() if size < 1]
        if small:
            raise SettingError(f"ParallelismConfig: {', '.join(small)}: must be a whole number from 1")
        for name, allowed in (("cp_backend", "torch"), ("sp_backend", "deepspeed")):
            if getattr(self, name) != allowed:
                raise SettingError(f"ParallelismConfig: {name}={getattr(self, name)!r}: must be {allowed!r}")
        if self.cp_size > 1 and self.sp_size > 1:
            raise SettingError("ParallelismConfig: cp_size and sp_size are both above 1", hint="choose one of them")
        if self.tp_size * self.cp_size > 1 and self.dp_replicate_size > self.dp_shard_size == 1:
            raise SettingError(
                f"ParallelismConfig: dp_replicate_size={self.dp_replicate_size} with tp_size={self.tp_size}, cp_size={self.cp_size} "
                "needs dp_shard_size above 1",
                hint="give the copies to dp_shard_size instead",
            )
        self._warn_of_handlers()

    def _warn_of_handlers(self) -> None:
        for axis in ("tp", "cp", "sp"):
            if getattr(self, f"{axis}_handler") is not None and self.sizes[axis] == 1:
                warnings.warn(f"ParallelismConfig: {axis}_handler has no effect with {axis}_size=1", stacklevel=4)

    def strategy(self) -> str | None:
        """Copies alone are ddp's; everything else is sharded."""
        return "fsdp" if self.total_size > self.dp_replicate_size else None

    @property
    def sizes(self) -> dict[str, int]:
        """Size of every axis, the outermost first."""
        return {axis: getattr(self, f"{axis}_size") for axis in AXES}

    @property
    def total_size(self) -> int:
        """Ranks that the layout needs."""
        return math.prod(self.sizes.values())

    @property
    def data_parallel_size(self) -> int:
        """Shares into which data is divided."""
        return self.dp_replicate_size * self.dp_shard_size

    @property
    def non_data_parallel_size(self) -> int:
        """Ranks that have the same data."""
        return self.total_size // self.data_parallel_size

    dp_replicate_enabled = property(lambda self: self.dp_replicate_size > 1, doc="Whether there are copies.")
    dp_shard_enabled = property(lambda self: self.dp_shard_size > 1, doc="Whether copies are sharded.")
    tp_enabled = property(lambda self: self.tp_size > 1, doc="Whether ranks share layers.")
    cp_enabled = property(lambda self: self.cp_size > 1, doc="Whether ranks share sequences, by torch.")
    sp_enabled = property(lambda self: self.sp_size > 1, doc="Whether ranks share sequences, by DeepSpeed.")

    def _active(self, *axes: str) -> list[str]:
        return [axis for axis in axes if self.sizes[axis] > 1]

    @property
    def active_mesh_dims(self) -> list[str]:
        """Axes with more than one rank."""
        return self._active(*AXES)

    @property
    def dp_dim_names(self) -> list[str]:
        """Of these, those that divide the data."""
        return self._active("dp_replicate", "dp_shard")

    @property
    def non_dp_dim_names(self) -> list[str]:
        """Of these, those whose ranks have the same data."""
        return self._active("cp", "sp", "tp")

    @property
    def dp_shard_cp_dim_names(self) -> list[str]:
        """Of these, those over which parameters are sharded."""
        return self._active("dp_shard", "cp")

    @property
    def dp_cp_dim_names(self) -> list[str]:
        """Of these, those over which losses are averaged."""
        return self._active("dp_replicate", "dp_shard", "cp")

    @property
    def fsdp_dim_names(self) -> list[str]:
        """Names by which the mesh gives what `fully_shard` needs."""
        return [*self._active("dp_replicate"), "dp_shard_cp"]

    def to_json(self) -> dict[str, Any]:
        """The fields as plain values."""
        found = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {name: value.to_dict() if isinstance(value, KwargsHandler) else value for name, value in found.items()}

    def fit(self, world: int) -> "ParallelismConfig":
        """The layout for so many ranks: without any size above 1 every rank has a copy. Raises SettingError where they do not fit."""
        if self.total_size == 1 and world > 1:
            self.dp_replicate_size = world
        if self.total_size != world:
            raise SettingError(
                f"ParallelismConfig: {_product(self.sizes)} is {self.total_size} ranks, and this run has {world}",
                hint=f"with {world} ranks: {'; '.join(self._fitting(world))}",
            )
        return self

    def _fitting(self, world: int) -> list[str]:
        """Layouts of so many ranks that keep what is shared within a batch, where that is possible."""
        inner = self.non_data_parallel_size
        rest = [world // inner] if world % inner == 0 else []
        found = [
            f"dp_replicate_size={copies}, dp_shard_size={whole // copies}"
            + "".join(f", {axis}_size={self.sizes[axis]}" for axis in self.non_dp_dim_names)
            for whole in rest
            for copies in _divisors(whole)
            if inner == 1 or copies == 1 or copies < whole
        ]
        return found[:4] or [f"tp_size={size}, dp_shard_size={world // size}" for size in _divisors(world)][:4]

    def build_device_mesh(self, device_type: str) -> Any:
        """The mesh of all axes with more than one rank (and of dp_shard where there is none), with `dp`, `dp_shard_cp` and `dp_cp`.

        All ranks call it. Raises UnsupportedError for axes that nothing here uses.
        """
        if self.sp_size > 1:
            raise UnsupportedError(
                "sp_size above 1 needs DeepSpeed's sequence parallelism, which is not available here"
            )
        axes = [axis for axis in AXES if self.sizes[axis] > 1 or axis == "dp_shard"]
        groups = {
            "dp": self._active("dp_replicate", "dp_shard"),
            "dp_shard_cp": ["dp_shard", *self._active("cp")],
            "dp_cp": self._active("dp_replicate", "dp_shard", "cp"),
        }
        self._mesh = _mesh_of(device_type, {axis: self.sizes[axis] for axis in axes}, groups)
        return self._mesh

    def get_device_mesh(self, device_type: str | None = None) -> Any:
        """The mesh. Raises ValueError before it was built without a type, or for another type than it was built for."""
        found = self.__dict__.get("_mesh")
        if found is None:
            if device_type is None:
                raise SettingError(
                    "ParallelismConfig: the mesh is not built yet", hint="give device_type, or prepare first"
                )
            return self.build_device_mesh(device_type)
        if device_type not in (None, found.device_type):
            raise SettingError(f"ParallelismConfig: the mesh is for {found.device_type!r}, not {device_type!r}")
        return found

    def share_of(self, rank: int) -> int:
        """Which share of the data a rank has."""
        return rank // self.non_data_parallel_size

    def coordinate(self, rank: int, axis: str) -> int:
        """A rank's place along an axis."""
        inner = math.prod(self.sizes[name] for name in AXES[AXES.index(axis) + 1 :])
        return rank // inner % self.sizes[axis]


_meshes: dict[Any, tuple[Any, Any]] = {}
"""Layout -> the process group of all ranks in which its mesh was made, and that mesh."""


def _mesh_of(device_type: str, sizes: Mapping[str, int], groups: Mapping[str, list[str]]) -> Any:
    """One mesh a layout, however often it is asked for: each has process groups with threads and connections of their own."""
    from torch.distributed import group
    from torch.distributed.device_mesh import init_device_mesh

    key = (device_type, *sizes.items(), *((name, *members) for name, members in groups.items()))
    world, mesh = _meshes.get(key, (None, None))
    if world is None or world is not group.WORLD:
        mesh = init_device_mesh(device_type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        for name, members in groups.items():
            if members:
                mesh[tuple(members)]._flatten(name)  # noqa: SLF001  (torch has no public name for it)
        _meshes[key] = (group.WORLD, mesh)
    return mesh


def _product(sizes: Mapping[str, int]) -> str:
    return " x ".join(f"{axis} {size}" for axis, size in sizes.items() if size > 1) or "1"


def _divisors(number: int) -> Iterator[int]:
    return (size for size in range(1, number + 1) if number % size == 0)
