"""Folders that recorded code is laid out in while it runs again: each has an owner, so that one whose owner was killed can be removed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accelkit.contract import codec
from accelkit.host.runs import liveness, replay
from accelkit.host.runs.record import Supervisor
from accelkit.host.runs.store import Store


@contextmanager
def folder(store: Store) -> Iterator[Path]:
    """A folder that is not there yet, and what was laid out in it gone at the end."""
    target = store.laid_out_dir / store.new_id()
    target.parent.mkdir(parents=True, exist_ok=True)
    owner = target.with_suffix(".json")
    codec.write(owner, liveness.this_process())
    try:
        yield target
    finally:
        replay.remove(target)
        owner.unlink(missing_ok=True)


def remove_abandoned(store: Store) -> int:
    """Remove folders whose owner lives no more; returns how many."""
    count = 0
    for owner in store.laid_out_dir.glob("*.json"):
        try:
            process = codec.read(Supervisor, owner)
        except (FileNotFoundError, codec.CodecError):
            continue
        if liveness.is_here(process) and not liveness.is_alive(process):
            replay.remove(owner.with_suffix(""))
            owner.unlink(missing_ok=True)
            count += 1
    return count
