"""Names that both sides must spell alike: environment variables, paths inside a container, exit codes, labels."""

from __future__ import annotations

TYPE_CHECKING = False  # what type checkers take for true; typing would cost every rank 10 ms before its script begins
if TYPE_CHECKING:
    from typing import Final

# ---- paths inside a container -------------------------------------------------------------------------------------
CONTAINER_RUNTIME: Final = "/accelkit/runtime"
"""Where the staged copy of `contract` + `runtime` is mounted (read-only) or baked; it is on PYTHONPATH."""
CONTAINER_EXCHANGE: Final = "/accelkit/run"
"""The run's exchange folder: spec.json in, node and rank results, logs and metrics out."""
CONTAINER_OUTPUTS: Final = "/accelkit/outputs"
"""The run's own output folder (KIT_OUTPUT_DIR)."""
CONTAINER_HOME: Final = "/accelkit/home"
"""HOME of the ranks' user: a cache folder of the host."""
CONTAINER_SECRETS: Final = "/run/secrets"
"""Secrets, a file each."""

# ---- files of the exchange folder ---------------------------------------------------------------------------------
SPEC_FILE: Final = "spec.json"
METRICS_FILE: Final = "metrics.jsonl"
LOGS_FOLDER: Final = "logs"
EXCHANGED: Final = 0o644
"""Permissions of what a rank or `boot` leaves for the host, which may run as another user."""


def node_file(node: int) -> str:
    """Name of the report that node `node` writes."""
    return f"node-{node}.json"


def rank_file(rank: int) -> str:
    """Name of the result that `boot` writes for rank `rank`."""
    return f"rank-{rank}.json"


def rank_error_file(rank: int) -> str:
    """Name of the error that rank `rank` itself writes when its script raises."""
    return f"rank-{rank}.error.json"


def rank_log_file(rank: int) -> str:
    """Name of the log of rank `rank` (stdout and stderr, unprefixed), relative to the exchange folder."""
    return f"{LOGS_FOLDER}/rank-{rank}.log"


# ---- environment variables ----------------------------------------------------------------------------------------
ENV_SPEC: Final = "KIT_SPEC"
"""Path of the launch spec; its presence tells the runtime that kit launched it."""
ENV_RUN_ID: Final = "KIT_RUN_ID"
ENV_NODE_NAME: Final = "KIT_NODE_NAME"
ENV_IMAGE_DIGEST: Final = "KIT_IMAGE_DIGEST"
ENV_OUTPUT_DIR: Final = "KIT_OUTPUT_DIR"
ENV_METRICS_FILE: Final = "KIT_METRICS_FILE"
ENV_SECRETS_DIR: Final = "KIT_SECRETS_DIR"

ENV_STRATEGY: Final = "KIT_STRATEGY"
ENV_PRECISION: Final = "KIT_PRECISION"
ENV_SEED: Final = "KIT_SEED"
ENV_DETERMINISTIC: Final = "KIT_DETERMINISTIC"
ENV_GRAD_ACCUM_STEPS: Final = "KIT_GRAD_ACCUM_STEPS"

RENDEZVOUS_ENV: Final = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
"""What `boot` sets for each rank: torch's own names."""

REFUSED_ENV: Final = (
    "PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_*", "RANK", "WORLD_SIZE", "LOCAL_*", "GROUP_*",
    "ROLE_*", "MASTER_*", "PET_*", "TORCHELASTIC_*", "CUDA_VISIBLE_DEVICES", "DOCKER_*", "SSH_*",
)  # fmt: skip
"""Patterns (fnmatch) of variables that are never passed from the host into a container."""

RANK_ENV_PATTERNS: Final = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_*", "MASTER_ADDR",
    "MASTER_PORT", "PET_*", "TORCHELASTIC_*",
)  # fmt: skip
"""Patterns of rank and rendezvous variables, which `--on local` takes out of the caller's environment."""

# ---- exit codes ---------------------------------------------------------------------------------------------------
EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_TIMEOUT: Final = 124
EXIT_KIT: Final = 125
"""kit itself, or the engine under it, failed."""
EXIT_HANGUP: Final = 129
EXIT_INTERRUPTED: Final = 130
EXIT_TERMINATED: Final = 143

# ---- labels of everything made on an engine -----------------------------------------------------------------------
LABEL_RUN: Final = "accelkit.run"
"""On every container, network and volume: the run's ID."""
LABEL_NODE: Final = "accelkit.node"
LABEL_IMAGE: Final = "accelkit.image"
"""On every image that `kit build` made: the name of its hardware image (cpu, cuda, ...)."""
LABEL_BUILD: Final = "accelkit.build"
"""On every image that `kit build` made: digest of everything that went into the build."""
LABEL_TORCH: Final = "accelkit.torch"
"""Torch's version and build."""
LABEL_DRIVER: Final = "accelkit.driver"
"""The oldest driver that the image runs with, where that is a matter."""
LABEL_CAPABILITIES: Final = "accelkit.capabilities"
"""Compute capabilities that its kernels are for, comma-separated; a plus at the end: and newer ones."""


def node_name(node: int) -> str:
    """Name of node `node`: its network alias, its hostname, and the prefix of its log lines."""
    return f"node{node}"
