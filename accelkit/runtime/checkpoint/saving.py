"""One save: every rank writes its files, all agree that they did, then the folder becomes a checkpoint."""

import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from accelkit.runtime.checkpoint import digest, folder, objectfile
from accelkit.runtime.checkpoint.agreement import Exchange, nodes, settle
from accelkit.runtime.checkpoint.digest import Digests
from accelkit.runtime.checkpoint.folder import Staging
from accelkit.runtime.checkpoint.manifest import Manifest
from accelkit.runtime.checkpoint.parts import ObjectPart, Part
from accelkit.runtime.checkpoint.shards import Written


@dataclass(frozen=True, kw_only=True)
class Place:
    """A rank among those that save together."""

    rank: int
    local_rank: int
    each_node: bool = False
    """The first rank of each node makes a folder, not only rank 0."""

    @property
    def is_maker(self) -> bool:
        """Whether this rank makes folders, and writes what ranks have alike."""
        return self.local_rank == 0 if self.each_node else self.rank == 0


@dataclass(kw_only=True)
class Save:
    """A save that has begun: its folder is there."""

    target: Path
    path: Path
    """Where files are written until then."""
    staging: Staging | None
    """On the ranks that make folders."""
    members: Sequence[int]
    """The ranks whose files go into this rank's folder."""
    size: int
    """Ranks of the run."""

    def run(self, job: "Job", exchange: Exchange, pool: Executor) -> None:
        """Write and commit. Every rank returns when the checkpoint is complete, or raises when it is not on any."""
        try:
            every = settle(exchange, f"writing {self.target}", lambda: write_parts(job.parts, self.path, pool))
            settle(exchange, f"completing {self.target}", lambda: self._commit(job, every, pool))
        except Exception:
            self.abandon()
            raise

    def _commit(self, job: "Job", every: list[dict[str, Digests]], pool: Executor) -> None:
        if self.staging is None:
            return
        files = {name: digests for rank in self.members for name, digests in every[rank].items()}
        for name in folder.own_files(self.path):
            if name not in files:  # a hook wrote it
                files[name] = digest.read_digests(self.path / name, pool)
        self.staging.commit(replace(job.manifest, files=files))
        self.staging = None
        job.after()

    def abandon(self) -> None:
        """Remove the folder of a save that has failed."""
        if self.staging is not None:
            self.staging.abandon()
            self.staging = None


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is left to do of a save when the training loop goes on."""

    parts: Sequence[Part]
    """What this rank writes."""
    manifest: Manifest
    """Without files yet."""
    after: Callable[[], None]
    """Called on the ranks that make folders, when the checkpoint is complete."""


def begin(exchange: Exchange, place: Place, choose: Callable[[], Path]) -> Save:
    """Agree on the target, which rank 0's `choose` names, and make the folder to write to."""

    def propose() -> tuple[Path | None, str, int]:
        return (choose() if place.rank == 0 else None), folder.new_token(), place.local_rank

    proposed = settle(exchange, "save_state", propose)
    target, token = proposed[0][0], proposed[0][1]
    assert target is not None
    target = target.expanduser().absolute()
    staging: list[Staging] = []

    def make_folder() -> Path | None:
        if place.is_maker:
            staging.append(Staging(target, token))
        return staging[0].path if staging else None

    paths = settle(exchange, f"making a folder for {target}", make_folder)
    owners = nodes([local for _, _, local in proposed]) if place.each_node else [0] * len(paths)
    path = paths[owners[place.rank]]
    assert path is not None
    return Save(
        target=target,
        path=path,
        staging=staging[0] if staging else None,
        members=[rank for rank, owner in enumerate(owners) if owner == owners[place.rank]],
        size=len(paths),
    )


def write_parts(parts: Sequence[Part], path: Path, pool: Executor) -> dict[str, Digests]:
    """Write files into a folder and bring them to the disk; their digests by name."""
    written = {}
    for part in parts:
        if isinstance(part, Written):
            written[part.name] = digest.read_digests(path / part.name, pool)
            continue
        written[part.name] = digest.write_file(path / part.name, pool, part.write)
        if isinstance(part, ObjectPart):
            _warn_of_classes(path / part.name)
    return written


def _warn_of_classes(path: Path) -> None:
    """Say now what a load would refuse."""
    with objectfile.numpy_is_safe():
        found = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    if found:
        warnings.warn(
            f"{path.name} holds objects of {', '.join(found)}: loading it needs "
            'load_state(..., load_kwargs={"weights_only": False}); a state_dict of tensors, numbers and texts does not',
            stacklevel=2,
        )
