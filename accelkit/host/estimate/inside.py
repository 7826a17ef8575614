"""A model's anatomy where it takes torch to find it: one rank builds the model without memory and writes down what it is."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from accelkit.contract import anatomy, codec
from accelkit.contract.anatomy import Anatomy
from accelkit.contract.spec import Program
from accelkit.host.errors import KitError
from accelkit.host.launch.plan import Mount

if TYPE_CHECKING:
    from accelkit.host.launch.request import Request

MODULE: Final = "accelkit.runtime.bigmodel.describe"
ONE_RANK: Final = {"run.nodes": 1, "run.procs_per_node": 1, "run.gpus": "none"}
"""Settings of such a run, whatever else is configured."""


def program(target: str, *, trust_remote_code: bool) -> Program:
    """What the rank runs. A path is made absolute, so that it is the same in a container."""
    path = Path(target)
    word = str(path.resolve()) if path.exists() else target
    return Program(kind="module", target=MODULE, args=(word, *(["--trust-remote-code"] if trust_remote_code else [])))


def ask(request: "Request", guard: Any) -> Anatomy:
    """Run it and read the answer. Raises KitError with what the rank said."""
    from accelkit.host.launch import api
    from accelkit.host.launch.screen import Quiet

    record = api.run(_with_model(request), Quiet(), guard)
    outcome = record.outcome
    path = Path(record.plan.run_dir) / "exchange" / anatomy.FILE
    if outcome is not None and outcome.exit_code == 0 and path.exists():
        return codec.read(Anatomy, path)
    root = outcome.root_cause if outcome else None
    hint = f"the whole output: kit runs logs {record.run_id}"
    if root and "MissingPackageError" in root.message:
        hint = "add it to the image (kit build cpu --requirements FILE), or use --on local where it is installed"
    raise KitError(
        f"{request.program.args[0]} cannot be described: {root.message if root else 'nothing was written'}", hint=hint
    )


def _with_model(request: "Request") -> "Request":
    """The same request, with the model's folder mounted where it lies."""
    path = Path(request.program.args[0])
    if not path.exists() or path.is_relative_to(request.workdir):
        return request
    folder = str(path if path.is_dir() else path.parent)
    return dataclasses.replace(request, extra_mounts=(*request.extra_mounts, Mount(source=folder, target=folder)))
