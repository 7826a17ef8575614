"""Preparing a loader without an `Accelerator`, by the name and arguments that scripts of this API family use."""

from collections.abc import Sequence
from typing import Any

import torch

from accelkit.runtime.data import prepare
from accelkit.runtime.data.loader import PreparedLoader
from accelkit.runtime.errors import UnsupportedError
from accelkit.runtime.gradients import GradientState
from accelkit.runtime.operations import synchronizer
from accelkit.runtime.settings import DataLoaderConfiguration
from accelkit.runtime.state import PartialState


def prepare_data_loader(
    dataloader: Any,
    device: torch.device | None = None,
    num_processes: int | None = None,
    process_index: int | None = None,
    split_batches: bool = False,
    put_on_device: bool = False,
    rng_types: Sequence[Any] | None = None,
    dispatch_batches: bool | None = None,
    even_batches: bool = True,
    slice_fn_for_dispatch: Any = None,
    use_seedable_sampler: bool = False,
    data_seed: int | None = None,
    non_blocking: bool = False,
    use_stateful_dataloader: bool = False,
) -> PreparedLoader:
    """The share of a loader that rank `process_index` of `num_processes` gets; None: this rank of all. All ranks call it.

    `put_on_device` moves batches to `device` (None: this rank's). The other arguments are those of `DataLoaderConfiguration` and
    `Accelerator`. For a share of other ranks than those of this run, ranks agree on nothing: give a `data_seed` where the loader shuffles.
    Raises what `Accelerator.prepare_data_loader` raises, and UnsupportedError for a `slice_fn_for_dispatch`.
    """
    if slice_fn_for_dispatch is not None:
        raise UnsupportedError(
            "slice_fn_for_dispatch is not available: rank 0 makes a batch for each rank, and cuts none",
            hint="let the collate_fn of the DataLoader make batches as they are to be",
        )
    config = DataLoaderConfiguration(
        split_batches=split_batches,
        dispatch_batches=dispatch_batches,
        even_batches=even_batches,
        use_seedable_sampler=use_seedable_sampler,
        data_seed=data_seed,
        non_blocking=non_blocking,
        use_stateful_dataloader=use_stateful_dataloader,
    )
    made = _share(dataloader, num_processes, process_index, device, config, put_on_device=put_on_device)
    made.before_epoch = synchronizer(rng_types or ())
    return made


def _share(
    loader: Any, size: int | None, rank: int | None, device: torch.device | None, config: DataLoaderConfiguration,
    *, put_on_device: bool,
) -> PreparedLoader:  # fmt: skip
    state = PartialState()
    size = state.num_processes if size is None else size
    rank = state.process_index if rank is None else rank
    is_run = (rank, size) == (state.process_index, state.num_processes)
    return prepare.prepare_data_loader(
        loader,
        rank=rank,
        size=size,
        device=(device or state.device) if put_on_device else None,
        config=config,
        agree=lambda value: state.operations.broadcast_object_list([value])[0] if is_run else value,
        state=GradientState(),
        handout=state.operations.handout if is_run else None,
    )
