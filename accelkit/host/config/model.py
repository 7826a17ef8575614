"""The model of kit.yaml: the one declaration of every setting.

Flags, KIT_* variables, the YAML file, its JSON schema, the sample and the wizard's questions all come from the fields below.
Only the standard library is imported here, so that `kit run --help` can list the options at once; values are checked when a config is
loaded (loading.py), and across fields by checks.py.
"""

import dataclasses
from typing import Final, Literal

from accelkit.contract.data import data
from accelkit.contract.options import Option, option, options, variable_of
from accelkit.contract.strategies import STRATEGIES, StrategyOptions

__all__ = ["Option", "option", "options", "variable_of"]

CONFIG_VERSION: Final = 1

Backend = Literal["docker", "local"]
Precision = Literal["no", "bf16", "fp16", "fp8"]


@data
class _RunOptions:
    """What `run` holds beside the options of strategies."""

    on: Backend = option(
        "docker",
        "Where the ranks run: docker (containers on this machine's engine) or local (this interpreter, no container).",
    )
    image: str = option(
        "cpu",
        "Image: the name of a hardware image that `kit build` made (cpu, ...), or any tag, ID or digest that the engine has.",
        syntax="image",
    )
    nodes: int = option(1, "Number of nodes: a container each on docker, a process group each on local.", metavar="N")
    procs_per_node: int | None = option(None, "Ranks a node; unset: all GPUs of the node, or 1 on CPU.", metavar="N")
    gpus: str | None = option(
        None,
        "GPUs of a node: all, none, a count, or a comma-separated list of indices or UUIDs; unset: all with a GPU image, else none.",
        syntax="gpus",
    )
    cpus: str | None = option(None, "CPUs a node may use, for example 2 or 1.5; unset: all.", syntax="cpus")
    memory: str | None = option(None, "Memory limit of a node, for example 4g; unset: none.", syntax="size")
    shm_size: str | None = option(None, "Size of /dev/shm of a node; unset: 1g on CPU, 8g with GPUs.", syntax="size")
    ulimit: list[str] = option(
        [],
        "Limit of a container, NAME=SOFT[:HARD]; unset: nofile=1048576 and stack=67108864, capped by the host's own limits.",
        syntax="ulimit",
        repeat=True,
    )
    user: str | None = option(None, "User in the container, UID[:GID]; unset: yours.", syntax="user")
    port: int | None = option(
        None,
        "Port of the rendezvous; unset: 29500 inside containers, a free one that kit reserves on local.",
        metavar="PORT",
    )
    mount: list[str] = option(
        [], "Extra mount, SOURCE[:TARGET][:ro|rw] (default: the same place, ro).", syntax="mount", repeat=True
    )
    env: list[str] = option(
        [],
        "Variable for the ranks: NAME=VALUE, or NAME or a pattern such as NCCL_* to pass yours on; recorded, so not for secrets.",
        syntax="env",
        repeat=True,
    )
    secret: list[str] = option(
        [],
        "Secret that the script reads as a file, NAME=FILE, or NAME to take variable NAME's value; never recorded.",
        syntax="secret",
        repeat=True,
    )
    strategy: str = option(
        "auto",
        f"How ranks train together: {'; '.join(f'{name} ({text})' for name, text in STRATEGIES.items())}.",
        syntax="strategy",
    )
    precision: Precision | None = option(None, "Mixed precision: no, bf16, fp16, fp8; unset: the script's choice.")
    grad_accum_steps: int | None = option(
        None, "Micro-batches per optimizer step; unset: the script's choice.", metavar="N"
    )
    seed: int | None = option(
        None, "Seed of every generator on every rank; unset: 0 with --deterministic, else none.", metavar="N"
    )
    deterministic: bool = option(
        False,
        "Deterministic algorithms, fixed threads and hash seed: the same world size gives the same numbers, bit for bit.",
    )
    threads: int | None = option(
        None, "Threads a rank; unset: cores / ranks on the machine, and 1 with --deterministic.", metavar="N"
    )
    timeout: str | None = option(None, "Stop the run after this time (90s, 15m, 4h); exit code 124.", syntax="duration")
    inputs: list[str] = option(
        [],
        "File or folder whose digest the record keeps, relative to the working folder.",
        flags=("--input",),
        repeat=True,
    )
    outputs: list[str] = option(
        ["outputs"],
        "File or folder that the run writes, relative to the working folder: digested at the end, never part of the code.",
        flags=("--output",),
        repeat=True,
    )


@data
class RunConfig(StrategyOptions, _RunOptions):
    """How a script is run: `run:` in kit.yaml, flags of `kit run`."""


@data
class BuildConfig:
    """How images are built: `build:` in kit.yaml, flags of `kit build`."""

    torch: str | None = option(None, "Version of torch instead of the image's default.", metavar="VERSION")
    python: str | None = option(None, "Version of Python, for example 3.12.", metavar="VERSION")
    cuda: str | None = option(None, "Version of CUDA that torch is built with, for example 12.6.", metavar="VERSION")
    variant: str | None = option(None, "Build of torch by its name, for example cu126.", metavar="NAME")
    base: str | None = option(None, "Base image instead of the hardware image's default.")
    ca: str | None = option(
        None, "File of CA certificates to trust while building (a build secret: in no layer).", metavar="FILE"
    )
    wheels: str | None = option(
        None, "Folder of wheels to install from before the index (a build context: in no layer).", metavar="DIR"
    )
    index_url: str | None = option(None, "Package index instead of pip's default.", metavar="URL")
    torch_index: str | None = option(
        None,
        "Index with PyTorch's builds instead of PyTorch's own ({build} stands for the build); none: the package index has them.",
        metavar="URL",
    )
    network: str | None = option(None, "Network of build steps: default, host or none.")
    requirements: list[str] = option(
        [], "requirements.txt to install on top; may be given many times.", metavar="FILE", repeat=True
    )
    project: str | None = option(
        None,
        "Folder of a project whose uv.lock, pyproject.toml or requirements.txt is installed on top.",
        metavar="DIR",
    )
    apt: list[str] = option([], "Debian package to install; may be given many times.", metavar="PACKAGE", repeat=True)
    platform: str | None = option(None, "Platform instead of this machine's, for example linux/arm64.")


@data
class Config:
    """The whole of kit.yaml."""

    version: int = option(CONFIG_VERSION, "Version of this file's format.")
    run: RunConfig = dataclasses.field(default_factory=RunConfig)
    build: BuildConfig = dataclasses.field(default_factory=BuildConfig)


def flag_of(name: str, described: Option) -> tuple[str, ...]:
    """The flags of a field: those it names, else `--` + its name with hyphens."""
    return described.flags or (f"--{name.replace('_', '-')}",)
