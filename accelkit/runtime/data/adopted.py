"""Loaders of other kinds, as torch DataLoaders: anything that yields batches, and torchdata's loader where it is asked for."""

import copy
import inspect
from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

from accelkit.runtime.available import how_to_install
from accelkit.runtime.data import sampler as samplers
from accelkit.runtime.errors import MissingPackageError


def adopt(loader: Any, *, stateful: bool = False) -> DataLoader[Any]:
    """The loader itself when it is a DataLoader that iterates as torch's does; else a DataLoader of the ready batches that it yields.

    With `stateful` the result is a torchdata StatefulDataLoader. Raises TypeError for what cannot be iterated anew,
    MissingPackageError when torchdata is asked for and not there.
    """
    found = adopt_batches(loader)
    return _make_stateful(found) if stateful else _with_torchs_samplers(found)


def adopt_batches(loader: Any) -> DataLoader[Any]:
    """The same, without more: a DataLoader of the batches that a loader yields, where it is not torch that makes them."""
    if not isinstance(loader, DataLoader):
        return AdoptedLoader(loader)
    return AdoptedLoader(copy.copy(loader)) if _iterates_otherwise(loader) else loader


def _iterates_otherwise(loader: DataLoader[Any]) -> bool:
    """Whether a DataLoader's class has an `__iter__` of its own: it may leave out batches, repeat them, or make others of them."""
    owner = next(kind for kind in type(loader).__mro__ if "__iter__" in vars(kind))
    return not owner.__module__.startswith(("torch.utils.data.", "torchdata.", "accelkit."))


def script_loader(loader: Any) -> DataLoader[Any] | None:
    """The script's DataLoader that has an `__iter__` of its own, inside the one that stands in front of it; None for any other."""
    dataset = getattr(loader.dataset, "dataset", loader.dataset)  # a share of a stream, or the stream
    found = dataset.loader if isinstance(dataset, ReadyBatches) else None
    return found if isinstance(found, DataLoader) else None


class ReadyBatches(IterableDataset[Any]):
    """The batches of a loader of another kind, as a stream."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Tell the loader, where it wants to know."""
        if hasattr(self.loader, "set_epoch"):
            self.loader.set_epoch(epoch)
        if hasattr(getattr(self.loader, "dataset", None), "set_epoch") and isinstance(self.loader, DataLoader):
            self.loader.__dict__["_iterator"] = None  # workers that persist hold the data set of the last epoch


class AdoptedLoader(DataLoader[Any]):
    """A DataLoader in front of a loader of another kind, whose attributes it shows."""

    def __init__(self, loader: Any) -> None:
        if not hasattr(loader, "__iter__") or isinstance(loader, Iterator):
            raise TypeError(
                f"prepare_data_loader needs a torch.utils.data.DataLoader, or an object whose __iter__ starts an epoch of "
                f"batches, not {type(loader).__module__}.{type(loader).__qualname__}. "
                "Put the data into a Dataset or IterableDataset and give a DataLoader of it."
            )
        super().__init__(ReadyBatches(loader), batch_size=None, collate_fn=_as_it_is)
        self.adopted = loader

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "adopted" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.adopted, name)


def _as_it_is(batch: Any) -> Any:
    return batch


def _make_stateful(loader: DataLoader[Any]) -> DataLoader[Any]:
    """A StatefulDataLoader with everything that the loader was made with."""
    try:
        from torchdata.stateful_dataloader import StatefulDataLoader
    except ImportError as error:
        raise MissingPackageError(
            "DataLoaderConfiguration(use_stateful_dataloader=True) needs torchdata 0.8 or later, which is not installed",
            hint=f"{how_to_install('torchdata')}; or leave the setting out: prepared loaders have state_dict and load_state_dict anyway",
        ) from error
    if StatefulDataLoader in type(loader).__mro__:
        return _with_torchs_samplers(loader)
    known = inspect.signature(StatefulDataLoader.__init__).parameters
    names = ["dataset", "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "generator"]
    names += ["multiprocessing_context", "persistent_workers", "pin_memory_device", "in_order"]
    if loader.num_workers > 0:
        names.append("prefetch_factor")
    arguments = {name: getattr(loader, name) for name in names if name in known and hasattr(loader, name)}
    made: DataLoader[Any] = StatefulDataLoader(**arguments, batch_size=None)
    made.__dict__.update(
        {name: loader.__dict__[name] for name in ("batch_size", "batch_sampler", "sampler", "drop_last")}
    )
    return made


def _with_torchs_samplers(loader: DataLoader[Any]) -> DataLoader[Any]:
    """A loader with torch's samplers where torchdata has put its own copies of them: torch's can be entered anywhere."""
    changed = {name: _torchs(getattr(loader, name)) for name in ("sampler", "batch_sampler")}
    if all(made is getattr(loader, name) for name, made in changed.items()):
        return loader
    made = copy.copy(loader)
    made.__dict__.update(changed)
    return made


def _torchs(sampler: Any) -> Any:
    """The sampler of torch's that one of torchdata's stands for, or the sampler itself.

    torchdata's random sampler always has a generator, the script's or one of its own making, and orders are drawn from that.
    """
    kind = type(sampler).__name__ if type(sampler).__module__.startswith("torchdata.") else ""
    if kind == "RandomSampler":
        return RandomSampler(*samplers.random_arguments(sampler))
    if kind == "BatchSampler":
        return BatchSampler(_torchs(sampler.sampler), sampler.batch_size, sampler.drop_last)
    return sampler
