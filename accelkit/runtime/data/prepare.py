"""Making a prepared loader of a script's loader: decides everything about it, once."""

import copy
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.data import IterableDataset

from accelkit.runtime import rng, structure
from accelkit.runtime.collectives.handout import Handout
from accelkit.runtime.data import sampler as samplers
from accelkit.runtime.data.adopted import adopt, script_loader
from accelkit.runtime.data.batches import RankBatches
from accelkit.runtime.data.dispatch import DispatchFeed
from accelkit.runtime.data.feeds import Feed
from accelkit.runtime.data.loader import LoopState, Move, PreparedLoader, make_map_feed, make_stream_feed
from accelkit.runtime.data.progress import Progress
from accelkit.runtime.data.shard import Plan
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
    handout: Handout | None = None,
    shard: bool = True,
) -> PreparedLoader:
    """This rank's share of `loader`, with batches moved to `device` (None: left where they are).

    Anything else that can be iterated again and again is taken for a loader of ready batches, of which each rank takes its own. A
    `handout` is needed where rank 0 reads for all. `shard=False` says that the loader serves this rank alone already; a
    DistributedSampler says so by itself. Ranks that shuffle agree on the order here: it is a call that all ranks make. Raises
    SettingError for a batch size that does not divide, and TypeError for what cannot be iterated.
    """
    loader = adopt(loader, stateful=config.use_stateful_dataloader)
    if size > 1 and loader.num_workers > 0 and not getattr(loader, "in_order", True):
        warnings.warn("in_order=False: ranks take their batches in order, so that they fit together", stacklevel=3)
        loader = copy.copy(loader)
        loader.__dict__["in_order"] = True
    is_stream = isinstance(loader.dataset, IterableDataset)
    alone = not shard or size == 1
    dispatch = _dispatches(config, handout, is_stream and (device is not None or script_loader(loader) is not None))
    share = (rank, 1 if alone else size)
    if is_stream:
        feed, progress = _prepare_stream(loader, share, config, agree, dispatch)
    else:
        feed, progress = _prepare_map(loader, share, config, agree, dispatch)
    if dispatch and handout is not None and feed.plan.size > 1:
        feed = DispatchFeed(feed, handout, pin=loader.pin_memory)
    return PreparedLoader(feed, progress=progress, state=state, move=mover(device, config))


def _dispatches(config: DataLoaderConfiguration, handout: Handout | None, by_default: bool) -> bool:
    """Whether rank 0 reads for all ranks: when asked for; unless refused, also for streams, which may differ between processes."""
    if config.dispatch_batches and handout is None:
        raise SettingError("dispatch_batches=True needs a way to the other ranks", hint="prepare with an Accelerator")
    return by_default and handout is not None if config.dispatch_batches is None else config.dispatch_batches


def _prepare_map(
    loader: Any, share: tuple[int, int], config: DataLoaderConfiguration, agree: Agree, dispatch: bool
) -> tuple[Feed, Progress]:
    rank, size = share
    attribute = "sampler" if loader.batch_sampler is None else "batch_sampler"
    inner = getattr(loader, attribute)
    batch_size, drop_last = getattr(inner, "batch_size", loader.batch_size), getattr(inner, "drop_last", False)
    if _serves_one_rank(inner, size):
        size = 1
    plan = _plan(loader, batch_size, drop_last, rank, size, config)
    if not samplers.is_ordered(inner):
        inner = samplers.agree(inner, _agree_on_seed(inner, config, agree))
    feed = make_map_feed(loader, attribute, RankBatches(inner, plan, every=dispatch))
    others = _told(loader.dataset, inner)
    return feed, Progress(feed, inner, others, data_changes=hasattr(loader.dataset, "set_epoch"))


def _told(dataset: Any, inner: Any) -> list[Any]:
    """The script's objects that are told which epoch begins."""
    scripts = [dataset, inner, getattr(inner, "sampler", None), getattr(inner, "inner", None)]
    return [found for found in scripts if hasattr(found, "set_epoch") and found is not samplers.seeded(inner)]


def _prepare_stream(
    loader: Any, share: tuple[int, int], config: DataLoaderConfiguration, agree: Agree, dispatch: bool
) -> tuple[Feed, Progress]:
    rank, size = share
    script, inner = script_loader(loader), None
    dataset = loader.dataset if script is None else script.dataset
    if script is not None and not isinstance(dataset, IterableDataset):
        attribute = "sampler" if script.batch_sampler is None else "batch_sampler"
        inner = getattr(script, attribute)
        if _serves_one_rank(inner, size):
            size = 1
        if not samplers.is_ordered(inner):
            _check_one_order(script, size, dispatch)
            inner = samplers.agree(inner, _agree_on_seed(inner, config, agree))
            script.__dict__[attribute] = inner
    if getattr(getattr(dataset, "_distributed", None), "world_size", None) == size:
        size = 1  # the data set yields this rank's samples only
    plan = _plan(loader, loader.batch_size, loader.drop_last, rank, size, config)
    feed = make_stream_feed(loader, plan, every=dispatch and size > 1)
    others = _told(loader.dataset, None) + ([] if script is None else _told(dataset, inner))
    return feed, Progress(feed, inner, others, data_changes=bool(others))


def _check_one_order(script: Any, size: int, dispatch: bool) -> None:
    """Refuse ranks that read a loader which may draw its order as it likes, each by itself."""
    if size > 1 and not dispatch:
        raise SettingError(
            f"{type(script).__name__} iterates in a way of its own, over samples whose order may be another one on every rank",
            hint="let rank 0 read for all ranks (leave dispatch_batches out), or use shuffle=False and torch's batch sampler",
        )


def _plan(loader: Any, batch_size: Any, drop_last: bool, rank: int, size: int, config: DataLoaderConfiguration) -> Plan:
    known = batch_size if isinstance(batch_size, int) else None
    if config.split_batches and size > 1:
        if known is None and not isinstance(loader.dataset, IterableDataset):
            raise SettingError(
                f"split_batches=True needs a batch size, and {type(loader).__name__} over {type(loader.dataset).__name__} has none",
                hint="give the DataLoader a batch_size (or its batch sampler an attribute of that name), or use split_batches=False",
            )
        if known is not None and known % size:
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


def mover(device: torch.device | None, config: DataLoaderConfiguration) -> Move | None:
    """What puts a batch on the device; None where every batch is there anyway."""
    if device is None or (device.type == "cpu" and not torch.accelerator.is_available()):
        return None
    return partial(structure.move, device=device, non_blocking=config.non_blocking)
