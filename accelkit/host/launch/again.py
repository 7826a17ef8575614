"""`kit reproduce`: a recorded run as a request for a new one, with every difference found on the way."""

import dataclasses
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from accelkit.contract import codec
from accelkit.contract.data import data
from accelkit.contract.packages import installed
from accelkit.contract.spec import Program
from accelkit.host import hardware
from accelkit.host.config.model import Backend, RunConfig, options
from accelkit.host.errors import ImageNotFound
from accelkit.host.launch import request as requests
from accelkit.host.launch.request import Request
from accelkit.host.launch.stage import Staged, stage_runtime, staged_before
from accelkit.host.runs import laid_out, replay
from accelkit.host.runs.record import ConfigValue, Record
from accelkit.host.runs.replay import Difference
from accelkit.host.runs.store import Store

KEPT_FOLDER: Final = "workdir"
"""In the folder of a reproduced run: outputs that it wrote beside its code."""


@data
class Again:
    """A recorded run, ready to run again."""

    request: Request
    differences: list[Difference]


@contextmanager
def prepare(record: Record, store: Store, command: tuple[str, ...], on: Backend | None) -> Iterator[Again]:
    """Lay the recorded code out for the time of the block, and list what differs. `on`: another backend than the recorded one."""
    config = recorded_config(record, on)
    differences = _differences(record, store, config)
    with laid_out.folder(store) as target:
        workdir = replay.lay_out(record, store, target)
        replay.bring_inputs(record, store.workdir, workdir)
        yield Again(request=_request(record, store, config, workdir, command), differences=differences)


def keep_outputs(ready: Again, now: Record) -> Path | None:
    """Move what the run wrote beside its code, which is about to go, into its own folder, which is returned; None when there is nothing."""
    code, kept = ready.request.code_dir, Path(now.plan.run_dir) / KEPT_FOLDER
    if code is None or not now.workdir_outputs:
        return None
    for name in now.workdir_outputs:
        (kept / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(code / name, kept / name)
    return kept


def recorded_config(record: Record, on: Backend | None) -> RunConfig:
    """The run's settings as recorded, the image by its ID, as many threads as it had; its variables come from the record."""
    values = {name: record.config[f"run.{name}"].value for name in options(RunConfig) if f"run.{name}" in record.config}
    threads = next((node.threads for node in (record.outcome.nodes if record.outcome else ())), None)
    config = RunConfig(**{**values, "env": [], "threads": values.get("threads") or threads})
    if on is not None:
        config = dataclasses.replace(config, on=on)
    if record.image is not None and config.on == "docker" and _is_here(record.image.id):
        config = dataclasses.replace(config, image=record.image.id)
    return config


def _is_here(image: str) -> bool:
    try:
        requests.image_named(image)
    except ImageNotFound:
        return False
    return True


def _request(record: Record, store: Store, config: RunConfig, workdir: Path, command: tuple[str, ...]) -> Request:
    shown = Path(record.plan.spec.workdir)
    values = {**record.config, "run.on": ConfigValue(value=config.on, origin=f"run {record.run_id}")}
    return Request(
        config=config,
        values=values,
        program=_program(record),
        command=command,
        workdir=store.workdir,
        code_dir=workdir,
        shown_workdir=shown if config.on == "docker" else None,
        code=record.code,
        reproduces=record.run_id,
        extra_env=record.environment,
        staged=_runtime(record),
    )


def _program(record: Record) -> Program:
    """The recorded program; a script that was named by its absolute path is the one in the laid-out code."""
    program, there = record.plan.spec.program, record.plan.workdir
    if program.kind == "script" and Path(program.target).is_absolute() and Path(program.target).is_relative_to(there):
        return dataclasses.replace(program, target=str(Path(program.target).relative_to(there)))
    return program


def _runtime(record: Record) -> Staged:
    """The recorded runtime where its copy is still in the cache, else this installation's, which may be another."""
    return staged_before(Path(record.plan.runtime_dir), record.runtime_digest) or stage_runtime()


def _differences(record: Record, store: Store, config: RunConfig) -> list[Difference]:
    found = replay.input_differences(record, store.workdir)
    with tempfile.TemporaryDirectory(prefix="accelkit-now-") as name:
        scratch = Path(name) / "runs" / "now"
        scratch.mkdir(parents=True)
        found += replay.tree_differences(record, store.workdir, scratch)
    image = _image_today(record) if config.on == "docker" and record.image else None
    found += replay.plan_differences(record, _runtime(record).digest, image)
    found += replay.hardware_differences(record, codec.to_dict(hardware.probe()))
    if config.on == "local":
        now = installed() | {"python": platform.python_version()}
        found += replay.package_differences(record, now)
    return found


def _image_today(record: Record) -> str | None:
    """What the recorded reference means today; "not there" when it means nothing."""
    if record.image is None:
        return None
    try:
        return requests.image_named(record.image.reference).id
    except ImageNotFound:
        return replay.NOT_THERE
