"""Making a prepared loader of a script's loader: decides everything about it, once."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from accelkit.runtime import rng, structure
from accelkit.runtime.data import sampler as samplers
from accelkit.runtime.data.batches import RankBatches
from accelkit.runtime.data.epochs import Epochs
from accelkit.runtime.data.loader import LoopState, Move, PreparedLoader
from accelkit.runtime.data.shard import Plan
from accelkit.runtime.data.stream import StreamShare, TailedCollate
from accelkit.runtime.errors import SettingError
from accelkit.runtime.settings import DataLoaderConfiguration

Agree = Callable[[Any], Any]
"""Gives every rank the value that rank 0 brings."""


def prepare_data_loader(
    loader: Any,
    *,
    rank: int,
    size: int,
    device: torch.device | None,
    config: DataLoaderConfiguration,
    agree: Agree,
    state: LoopState,
    shard: bool = True,
) -> PreparedLoader:
    """This rank's share of `loader`, with batches moved to `device` (None: left where they are).

    `shard=False` says that the loader serves this rank alone already; a DistributedSampler says so by itself. Ranks that
    shuffle agree on the order here: it is a call that all ranks make. Raises SettingError for a batch size that does not
    divide, and TypeError for anything that is not a torch DataLoader.
    """
    _check(loader)
    if isinstance(loader.dataset, IterableDataset):
        plan = _plan(loader, loader.batch_size, loader.drop_last, rank, size if shard else 1, config)
        return _prepare_stream(loader, plan, state, mover(device, config))
    attribute = "sampler" if loader.batch_sampler is None else "batch_sampler"
    inner = getattr(loader, attribute)
    batch_size, drop_last = getattr(inner, "batch_size", loader.batch_size), getattr(inner, "drop_last", False)
    alone = not shard or _serves_one_rank(inner, size)
    plan = _plan(loader, batch_size, drop_last, rank, 1 if alone else size, config)
    if not samplers.is_ordered(inner):
        inner = samplers.agree(inner, _agree_on_seed(inner, config, agree))
    base = copy.copy(loader)
    base.__dict__.update({attribute: RankBatches(inner, plan), "_iterator": None})
    return PreparedLoader(base, plan=plan, epochs=_epochs(loader, inner), state=state, move=mover(device, config))


def _check(loader: Any) -> None:
    if isinstance(loader, DataLoader):
        return
    missing = [name for name in ("dataset", "batch_sampler", "sampler") if not hasattr(loader, name)]
    lacks = f"; it lacks {', '.join(missing)}" if missing else ""
    raise TypeError(
        f"prepare_data_loader needs a torch.utils.data.DataLoader, not {type(loader).__module__}.{type(loader).__qualname__}{lacks}. "
        "Put the data into a Dataset or IterableDataset and give a DataLoader of it."
    )


def _plan(loader: Any, batch_size: Any, drop_last: bool, rank: int, size: int, config: DataLoaderConfiguration) -> Plan:
    known = batch_size if isinstance(batch_size, int) else None
    if config.split_batches and size > 1:
        if known is None:
            raise SettingError(
                f"split_batches=True needs a batch size, and {type(loader).__name__} over {type(loader.dataset).__name__} has none",
                hint="give the DataLoader a batch_size (or its batch sampler an attribute of that name), or use split_batches=False",
            )
        if known % size:
            raise SettingError(
                f"split_batches=True: the batch size {known} does not divide by {size} ranks",
                hint=f"use a batch size that is a multiple of {size}, for example {-(-known // size) * size}",
            )
    return Plan(
        rank=rank if size > 1 else 0,
        size=size,
        batch_size=known,
        drop_last=bool(drop_last),
        even=config.even_batches,
        split=config.split_batches and size > 1,
    )


def _serves_one_rank(inner: Any, size: int) -> bool:
    """Whether the sampler has divided the data among the ranks already."""
    found = samplers.distributed_part(inner)
    if found is None:
        return False
    if found.num_replicas != size and size > 1:
        raise SettingError(
            f"the loader's DistributedSampler divides among {found.num_replicas} ranks, but this run has {size}",
            hint="leave the DistributedSampler out: prepare() divides the data",
        )
    return True


def _agree_on_seed(inner: Any, config: DataLoaderConfiguration, agree: Agree) -> int:
    """One seed for all ranks, and one state of the script's own generator where it has one."""
    generator = samplers.own_generator(inner)
    given = samplers.own_seed(inner)
    if given is None:
        given = config.data_seed
    if given is None:
        given = torch.initial_seed() if config.use_seedable_sampler else rng.draw_seed()
    state = None if generator is None else generator.get_state()
    seed, state = agree((given, state))
    if generator is not None:
        generator.set_state(state)
    return int(seed)


def _epochs(loader: Any, inner: Any) -> Epochs:
    own = [found for found in (inner, getattr(inner, "sampler", None)) if _is_ours(found)]
    scripts = [loader.dataset, inner, getattr(inner, "sampler", None), getattr(inner, "inner", None)]
    others = [found for found in scripts if hasattr(found, "set_epoch") and not _is_ours(found)]
    return Epochs(own, others, data_changes=hasattr(loader.dataset, "set_epoch"))


def _is_ours(sampler: Any) -> bool:
    return isinstance(sampler, (samplers.SeedableRandomSampler, samplers.IsolatedSampler))


def _prepare_stream(loader: Any, plan: Plan, state: LoopState, move: Move | None) -> PreparedLoader:
    base = copy.copy(loader)
    collate = TailedCollate(loader.collate_fn, whole=plan.batch_size is None)
    share = StreamShare(loader.dataset, plan)
    if plan.size > 1:
        base.__dict__.update(dataset=share, collate_fn=collate, batch_size=plan.share)
        if plan.share is not None:  # what tells the reading process how many samples make a batch
            base.__dict__["batch_sampler"] = BatchSampler(loader.sampler, plan.share, drop_last=False)
    base.__dict__["_iterator"] = None
    others = [loader.dataset] if hasattr(loader.dataset, "set_epoch") else []
    return PreparedLoader(base, plan=plan, epochs=Epochs([], others, data_changes=bool(others)), state=state, move=move)


def mover(device: torch.device | None, config: DataLoaderConfiguration) -> Move | None:
    """What puts a batch on the device; None where every batch is there anyway."""
    if device is None or (device.type == "cpu" and not torch.accelerator.is_available()):
        return None
    return partial(structure.move, device=device, non_blocking=config.non_blocking)
