"""What a rank is told by its environment: its place in the world, and the defaults of the script's settings.

The one file of the library that reads the environment. Everything is read once, when the first state object is made.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from accelkit.contract import codec, names, strategies
from accelkit.contract.spec import LaunchSpec, RuntimeSettings
from accelkit.runtime.errors import SettingError

_TRUE: Final = ("1", "true", "yes", "on")
_FALSE: Final = ("", "0", "false", "no", "off")
FORK_LAUNCHED: Final = "FORK_LAUNCHED"
"""Set by launchers that fork ranks."""


@dataclass(frozen=True, kw_only=True)
class World:
    """This process among all of the run."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Index on this node; names the device."""

    def __post_init__(self) -> None:
        """Refuse a rank outside the world."""
        if self.size < 1 or not 0 <= self.rank < self.size or self.local_rank < 0:
            raise SettingError(
                f"RANK={self.rank} LOCAL_RANK={self.local_rank} WORLD_SIZE={self.size}: no such rank",
                hint="ranks count from 0 to WORLD_SIZE - 1; start the script with `kit run` or torchrun, which set them",
            )


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """Settings that the launch gives; an explicit argument in the script wins."""

    settings: RuntimeSettings
    source: str
    """Where they come from, as a person would say it."""


def read_world(environ: Mapping[str, str] | None = None) -> World:
    """Rank and world size as launchers tell them. Without WORLD_SIZE this is the only process.

    Raises SettingError when WORLD_SIZE announces other ranks and a variable needed to find them is missing.
    """
    env = os.environ if environ is None else environ
    size = _integer(env, "WORLD_SIZE", 1)
    if size == 1:
        return World(local_rank=_integer(env, "LOCAL_RANK", 0))
    missing = [name for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if not env.get(name)]
    if missing:
        raise SettingError(
            f"WORLD_SIZE={size} says that there are other ranks, but {', '.join(missing)} is not set",
            hint="start the script with `kit run` or torchrun, which set all of them, or unset WORLD_SIZE",
        )
    return World(rank=_integer(env, "RANK", 0), size=size, local_rank=_integer(env, "LOCAL_RANK", 0))


def read_defaults(environ: Mapping[str, str] | None = None) -> Defaults:
    """The launch's settings: from the spec that KIT_SPEC names, else from the KIT_* variables."""
    env = os.environ if environ is None else environ
    spec = env.get(names.ENV_SPEC)
    if spec:
        return Defaults(settings=_read_spec(spec).settings, source=f"the launch ({spec})")
    try:
        strategy_options = strategies.from_environment(env)
    except ValueError as error:
        raise SettingError(str(error)) from None
    settings = RuntimeSettings(
        strategy=env.get(names.ENV_STRATEGY) or "auto",
        precision=env.get(names.ENV_PRECISION) or None,
        seed=_optional_integer(env, names.ENV_SEED),
        deterministic=_flag(env, names.ENV_DETERMINISTIC),
        grad_accum_steps=_optional_integer(env, names.ENV_GRAD_ACCUM_STEPS),
        strategy_options=strategy_options,
    )
    return Defaults(settings=settings, source="the environment (KIT_*)")


def become(variables: Mapping[str, str]) -> None:
    """Take over what a launcher tells a rank. Only in a process that was started for it."""
    os.environ.update(variables)


def is_fork_launched() -> bool:
    """Whether this process was forked from the one that launched it."""
    return _flag(os.environ, FORK_LAUNCHED)


def first_rank_of_node() -> int:
    """The first rank of this node, by the number of ranks that each node has (NPROC) and the node's index (NODE_RANK)."""
    return _integer(os.environ, "NPROC", 1) * _integer(os.environ, "NODE_RANK", 0)


def local_world_size(size: int) -> int:
    """Ranks of this node; those of the run where the launch does not say."""
    return _integer(os.environ, "LOCAL_WORLD_SIZE", size)


def user_config() -> Path:
    """The config file that `kit` reads when nothing else is there."""
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "accelkit" / "default_config.yaml"


def text(name: str) -> str | None:
    """What a variable says; None where it is not set, or empty."""
    return os.environ.get(name) or None


def metrics_file() -> Path | None:
    """The file that metrics are appended to; None without one."""
    path = os.environ.get(names.ENV_METRICS_FILE)
    return Path(path) if path else None


def exchange_folder() -> Path | None:
    """The run's exchange folder; None when kit did not launch this process."""
    spec = os.environ.get(names.ENV_SPEC)
    return Path(spec).parent if spec else None


def output_dir() -> Path:
    """The folder for what the run produces: the launch's, else `outputs` in the working folder."""
    return Path(os.environ.get(names.ENV_OUTPUT_DIR) or "outputs")


def master_addr() -> str | None:
    """An address of the machine of rank 0; None where the launch says none."""
    return os.environ.get("MASTER_ADDR") or None


def master_port() -> int:
    """The port of rank 0's store; 0 where the launch says none."""
    return _integer(os.environ, "MASTER_PORT", 0)


def threads_are_set() -> bool:
    """Whether somebody decided the number of threads before the process started."""
    return bool(os.environ.get("OMP_NUM_THREADS"))


def fix_cublas_workspace() -> None:
    """Give cuBLAS the workspace with which it is deterministic, unless one was chosen. Only before its first use."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def _read_spec(path: str) -> LaunchSpec:
    try:
        return codec.read(LaunchSpec, path)
    except (OSError, codec.CodecError) as error:
        raise SettingError(
            f"{names.ENV_SPEC}={path}: {error}",
            hint=f"`kit run` sets {names.ENV_SPEC}; unset it to run without a launch spec",
        ) from error


def _integer(env: Mapping[str, str], name: str, default: int) -> int:
    found = _optional_integer(env, name)
    return default if found is None else found


def _optional_integer(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "").strip()
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise SettingError(f"{name}={text!r}: must be a whole number") from None


def _flag(env: Mapping[str, str], name: str) -> bool:
    text = env.get(name, "").strip().lower()
    if text not in _TRUE + _FALSE:
        raise SettingError(f"{name}={text!r}: must be one of {', '.join(_TRUE)}, {', '.join(filter(None, _FALSE))}")
    return text in _TRUE
