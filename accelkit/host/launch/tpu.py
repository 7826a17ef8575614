"""The variables by which libtpu knows its place in a slice: all of them, or none; and what is refused. Pure."""

from collections.abc import Mapping
from typing import Final

from accelkit.host.errors import UsageError
from accelkit.host.image.catalogue import DeviceRules

TOPOLOGY: Final = (
    "TPU_SKIP_MDS_QUERY", "TPU_ACCELERATOR_TYPE", "TPU_PROCESS_BOUNDS", "TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_WORKER_ID",
    "TPU_WORKER_HOSTNAMES",
)  # fmt: skip
"""On a whole slice the library finds these out by itself; on a part of one it needs every one of them."""

LEGACY: Final = ("XLA_USE_BF16", "XLA_DOWNCAST_BF16")


def is_about(rules: DeviceRules) -> bool:
    """Whether an image is for TPUs."""
    return "PJRT_DEVICE" in rules.environment


def check(environ: Mapping[str, str], nodes: int) -> None:
    """Raise UsageError for variables that contradict each other or the run's number of nodes."""
    for name in LEGACY:
        if name in environ:
            raise UsageError(f"--env {name}: it changes the meaning of every dtype", hint="use --precision bf16")
    given = [name for name in TOPOLOGY if name in environ]
    missing = [name for name in TOPOLOGY if name not in environ]
    if given and missing:
        raise UsageError(
            f"--env {given[0]}: a part of a slice needs all of its variables; missing are {', '.join(missing)}",
            hint="give all of them, or none: on a whole slice the library finds them by itself",
        )
    if not given:
        return
    hosts = [name for name in environ["TPU_WORKER_HOSTNAMES"].split(",") if name]
    if len(hosts) > nodes:
        raise UsageError(
            f"TPU_WORKER_HOSTNAMES names {len(hosts)} hosts and the run has {nodes}: every host of a slice has to run"
        )
    node_rank(environ, len(hosts))


def node_rank(environ: Mapping[str, str], nodes: int) -> int:
    """Rank of this host: its worker ID, which the slice decides. Raises UsageError where it is none of them."""
    text = environ.get("TPU_WORKER_ID", "0")
    if not text.isdigit() or int(text) >= nodes:
        raise UsageError(f"TPU_WORKER_ID is {text!r}; allowed are 0 to {nodes - 1}")
    return int(text)
