"""One load: everything is read and compared first, then written into the live objects, where they lie."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from accelkit.runtime import rng, sharded
from accelkit.runtime.checkpoint import memory, names, objectfile, optimizers, shards, tensorfile
from accelkit.runtime.checkpoint.folder import Opened
from accelkit.runtime.checkpoint.parts import Subjects, has_state
from accelkit.runtime.errors import CheckpointError

Apply = Callable[[], None]
"""Writes what was read and found right into a live object."""
Form = tuple[torch.dtype, tuple[int, ...]] | None
"""Type and shape of a tensor; None for anything else."""


@dataclass(kw_only=True)
class Load:
    """What a load does, decided before anything is changed."""

    applies: list[Apply] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What a person should know."""
    step: int = 0
    """Micro-batches that were counted since a loader last ended."""


def prepare(subjects: Subjects, found: Opened, load_kwargs: Mapping[str, Any], *, strict: bool) -> Load:
    """Read and check everything; nothing is changed yet. Raises CheckpointError for whatever does not fit.

    What checks by itself when it is applied (a script's object, a loader) comes first, and the weights after it.
    """
    load = Load()
    chosen = _choose(subjects, found, load)
    objects = [(names.custom(index), one) for index, one in enumerate(subjects.custom)]
    if chosen["loaders"]:
        loaders = [(names.loader(index), one) for index, one in enumerate(subjects.loaders)]
        objects += [(name, one) for name, one in loaders if has_state(one) and found.has(name)]
    if chosen["schedulers"]:
        objects += [(names.scheduler(index), one) for index, one in enumerate(subjects.schedulers)]
    if chosen["scalers"]:
        objects.append((names.SCALER_NAME, subjects.scaler))
    load.applies += [_prepare_object(found, name, one, load_kwargs) for name, one in objects]
    if chosen["models"]:
        load.applies += [_prepare_model(subjects, found, i, strict, load_kwargs) for i in range(len(subjects.models))]
    if chosen["optimizers"]:
        load.applies += [_prepare_optimizer(subjects, found, i, load_kwargs) for i in range(len(subjects.optimizers))]
    _prepare_rank(subjects, found, load)
    return load


def _choose(subjects: Subjects, found: Opened, load: Load) -> dict[str, bool]:
    """Which kinds are loaded: all of a kind, or none where none is prepared. Registered objects must be as many."""
    mine, theirs = subjects.counts, found.manifest.counts
    if mine["custom"] != theirs["custom"]:
        classes = ", ".join(type(one).__name__ for one in subjects.custom) or "none"
        raise CheckpointError(
            f"{found.folder} holds {theirs['custom']} registered objects, and {mine['custom']} are registered: {classes}",
            hint="call register_for_checkpointing with the same objects, in the same order, before load_state",
        )
    chosen = {}
    for kind, count in mine.items():
        chosen[kind] = count > 0 and count == theirs[kind]
        if count and count != theirs[kind]:
            raise CheckpointError(
                f"{found.folder} holds {theirs[kind]} {kind}, and {count} are prepared",
                hint="prepare the same objects, in the same order, before load_state; or none of a kind to leave it out",
            )
    left_out = [f"{theirs[kind]} {kind}" for kind, count in mine.items() if not count and theirs[kind]]
    if left_out:
        load.notes.append(f"{', '.join(left_out)} of {found.folder} are not loaded: none is prepared")
    return chosen


def _prepare_object(found: Opened, name: str, target: Any, load_kwargs: Mapping[str, Any]) -> Apply:
    state = objectfile.read(found.path(name), load_kwargs)
    return lambda: target.load_state_dict(memory.own(state))


def _prepare_model(
    subjects: Subjects, found: Opened, index: int, strict: bool, load_kwargs: Mapping[str, Any]
) -> Apply:
    model, strategy = subjects.models[index], subjects.strategy
    live = strategy.live_state(model)
    if found.has(f"{names.shards_of_model(index)}/.metadata"):
        return _prepare_divided(subjects, found, index, live, strict, load_kwargs)
    path = found.path(names.model(index))
    safe = found.has(names.model(index))
    layout = tensorfile.read_layout(path) if safe else tensorfile.Layout({})
    other = names.model_extra(index) if safe else names.model(index, safe=False)
    extra = objectfile.read(found.path(other), load_kwargs) if found.has(other) else {}
    _make_room(live, layout)
    _refuse(found, index, _compare(live, layout, extra, strict=strict))

    def apply() -> None:
        skip = _already_read(live, layout)
        slots = [(slot, live[name]) for name in live if name not in skip and (slot := layout.find(name)) is not None]
        if safe:
            shards.read_into(path, slots)
        for name in extra:
            if name in live:
                live[name] = extra[name] if _takes_any_form(name, live[name]) else _take(live[name], extra[name])
        strategy.load_model_state(model, live, strict=strict)

    return apply


def _prepare_divided(
    subjects: Subjects,
    found: Opened,
    index: int,
    live: dict[str, Any],
    strict: bool,
    load_kwargs: Mapping[str, Any],
) -> Apply:
    """A model whose ranks have written their parts: each reads what it holds now."""
    folder, other = names.shards_of_model(index), names.model_extra(index)
    extra = objectfile.read(found.path(other), load_kwargs) if found.has(other) else {}
    saved: dict[str, Form] = {name.removeprefix("model."): form for name, form in shards.layout(found, folder).items()}
    _refuse(
        found, index, _compare_forms(live, saved | {name: _form(value) for name, value in extra.items()}, strict=strict)
    )

    def apply() -> None:
        shards.read(found, folder, {f"model.{name}": live[name] for name in live if saved.get(name) is not None})
        live.update({name: value for name, value in extra.items() if name in live})
        subjects.strategy.load_model_state(subjects.models[index], live, strict=strict)

    return apply


def _takes_any_form(name: str, value: Any) -> bool:
    """Whether a module takes a value of whatever form: what it keeps beside tensors, and what it has not made yet."""
    return name.rpartition(".")[2] == "_extra_state" or nn.parameter.is_lazy(value)


def _make_room(live: dict[str, Any], layout: tensorfile.Layout) -> None:
    """Give such values the form that they have in the file, to be read into."""
    for name, value in live.items():
        slot = layout.find(name)
        if slot is not None and _takes_any_form(name, value):
            live[name] = torch.empty(slot.shape, dtype=slot.dtype)


def _refuse(found: Opened, index: int, problems: list[str]) -> None:
    if problems:
        shown = [*problems[:8], *([f"and {len(problems) - 8} more"] if len(problems) > 8 else [])]
        raise CheckpointError("\n  ".join([f"{found.folder}: model {index} is another one:", *shown]))


def _already_read(live: Mapping[str, Any], layout: tensorfile.Layout) -> set[str]:
    """Names that share the memory, and the place in the file, of one that is read anyway."""
    aliases = tensorfile.find_aliases({name: value for name, value in live.items() if tensorfile.fits(value)})
    return {name for name, kept in aliases.items() if layout.find(kept) is not None}


def _take(live: Any, saved: Any) -> Any:
    if isinstance(live, torch.Tensor) and isinstance(saved, torch.Tensor):
        sharded.fill(live, saved)
        return live
    return saved


def _compare(
    live: Mapping[str, Any], layout: tensorfile.Layout, extra: Mapping[str, Any], *, strict: bool
) -> list[str]:
    """What keeps a saved state from being that of a live model."""
    saved: dict[str, Form] = {
        name: (slot.dtype, slot.shape) for name in layout.names if (slot := layout.find(name)) is not None
    }
    problems = _compare_forms(live, saved | {name: _form(value) for name, value in extra.items()}, strict=strict)
    tensors = {name: value for name, value in live.items() if tensorfile.fits(value)}
    for name, kept in tensorfile.find_aliases(tensors).items():
        if name in layout.names and kept in layout.names and layout.find(name) != layout.find(kept):
            problems.append(f"{name} and {kept} are two tensors in the checkpoint and one in the model")
    return problems


def _compare_forms(live: Mapping[str, Any], saved: Mapping[str, Form], *, strict: bool) -> list[str]:
    """Names, types and shapes that differ."""
    problems = []
    if strict:
        problems += [f"{name} is missing from the checkpoint" for name in live if name not in saved]
        problems += [f"{name} is not in the model" for name in sorted(saved) if name not in live]
    for name in live:
        if name in saved and not _takes_any_form(name, live[name]) and saved[name] != _form(live[name]):
            problems.append(
                f"{name} is {_show(saved[name])} in the checkpoint and {_show(_form(live[name]))} in the model"
            )
    return problems


def _form(value: Any) -> Form:
    return (value.dtype, tuple(value.shape)) if isinstance(value, torch.Tensor) else None


def _show(form: Form) -> str:
    return "no tensor" if form is None else f"{str(form[0]).removeprefix('torch.')} {list(form[1])}"


def _prepare_optimizer(subjects: Subjects, found: Opened, index: int, load_kwargs: Mapping[str, Any]) -> Apply:
    name, target = names.optimizer(index), subjects.optimizers[index]
    inner = subjects.strategy.form(getattr(target, "optimizer", target))
    saved = objectfile.read(found.path(name), load_kwargs)
    if found.has(f"{names.shards_of_optimizer(index)}/.metadata"):
        saved = shards.read_optimizer(found, index, saved, inner)
    problems = optimizers.compare(saved, inner)
    if problems:
        raise CheckpointError("\n  ".join([f"{found.path(name)}: optimizer {index} is another one:", *problems[:8]]))
    return lambda: subjects.strategy.load_optimizer_state(target, optimizers.take(saved, inner))


def _prepare_rank(subjects: Subjects, found: Opened, load: Load) -> None:
    """Generators and the accumulation step; those of a rank that was not there are derived from one that was."""
    name = names.rank(subjects.rank)
    if found.has(name):
        state = objectfile.read(found.path(name))
        load.applies.append(lambda: rng.restore(state, subjects.device))
    else:
        known = sorted(file for file in found.manifest.files if file.startswith("random_states_"))
        if not known:
            raise CheckpointError(f"{found.folder} holds no random states")
        state = objectfile.read(found.path(known[0]))
        load.applies.append(lambda: rng.derive(state, subjects.rank))
        load.notes.append(
            f"rank {subjects.rank} has no random state in {found.folder}, saved by {found.manifest.world_size} ranks: "
            f"its generators are seeded from {known[0]} and its rank"
        )
    load.step = state["step"]


def describe_world(found: Opened, size: int) -> list[str]:
    """What differs in the number of ranks, in words."""
    saved = found.manifest.world_size
    if saved == size:
        return []
    return [f"{found.folder} was saved by {saved} ranks and is loaded by {size}: steps hold another number of samples"]
