"""From a config and what the machine has to a LaunchPlan. Reads a little (limits, the script's existence), changes nothing."""

import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from accelkit.contract import names
from accelkit.contract.spec import LaunchSpec, Program, RuntimeSettings
from accelkit.host import paths
from accelkit.host.config import syntax
from accelkit.host.config.model import RunConfig
from accelkit.host.errors import UsageError
from accelkit.host.launch import environment, network, secrets, topology
from accelkit.host.launch.plan import (
    ContainerPlan,
    ImagePlan,
    LaunchPlan,
    Mount,
    NetworkPlan,
    NodePlan,
    Ulimit,
)
from accelkit.host.launch.stage import Staged
from accelkit.host.launch.topology import Topology

NOFILE: Final = 1 << 20
STACK: Final = 64 << 20
DETERMINISTIC_THREADS: Final = 1
DETERMINISTIC_SEED: Final = 0
PASSWD: Final = "passwd"  # noqa: S105  (a file's name)
"""File of the run's folder that containers see as /etc/passwd."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a run happens on the host, and what was found there."""

    run_id: str
    run_dir: Path
    workdir: Path
    """The code that runs."""
    shown_workdir: Path | None = None
    """The path that ranks see it at, when it is another (a reproduced run sees the recorded one); containers only."""
    staged: Staged
    environ: Mapping[str, str]
    python: str
    """Interpreter of local ranks."""
    extra_mounts: tuple[Mount, ...] = ()
    extra_env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class EngineFacts:
    """What the engine told: the image, its networks, whether its users are remapped."""

    image: ImagePlan
    taken_subnets: tuple[str, ...] = ()
    root_inside: bool = False
    """Rootless or remapped: the caller is root inside the container."""


def plan_local(config: RunConfig, program: Program, place: Place, topo: Topology, port: int) -> LaunchPlan:
    """A plan of process groups on this machine, on this interpreter."""
    check_program(program, place.workdir, ())
    exchange, outputs = place.run_dir / "exchange", place.run_dir / "outputs"
    spec = _spec(config, program, place, topo, address="127.0.0.1", port=port, workdir=str(place.workdir),
                 exchange=str(exchange), outputs=str(outputs),
                 secrets_dir=str(secrets.folder_of(place.run_id)) if config.secret else None)  # fmt: skip
    return LaunchPlan(
        backend="local",
        spec=spec,
        nodes=tuple(NodePlan(index=i, name=names.node_name(i)) for i in range(topo.nodes)),
        run_dir=str(place.run_dir),
        workdir=str(place.workdir),
        runtime_digest=place.staged.digest,
        runtime_dir=str(place.staged.folder),
        python=place.python,
        timeout=syntax.parse_duration(config.timeout) if config.timeout else None,
    )


def plan_docker(config: RunConfig, program: Program, place: Place, topo: Topology, engine: EngineFacts) -> LaunchPlan:
    """A plan of one container a node on one engine; several nodes get a network of their own."""
    mounts = _mounts(config, place)
    check_program(program, place.workdir, mounts)
    several = topo.nodes > 1
    subnet = network.free_subnet(place.run_id, topo.nodes, engine.taken_subnets) if several else None
    spec = _spec(
        config, program, place, topo,
        address=names.node_name(0) if several else "127.0.0.1",
        port=config.port or network.CONTAINER_PORT,
        workdir=str(place.shown_workdir or place.workdir),
        exchange=names.CONTAINER_EXCHANGE, outputs=names.CONTAINER_OUTPUTS,
        secrets_dir=names.CONTAINER_SECRETS if config.secret else None, image_digest=engine.image.id,
    )  # fmt: skip
    return LaunchPlan(
        backend="docker",
        spec=spec,
        nodes=tuple(
            NodePlan(
                index=i,
                name=names.node_name(i),
                container_name=f"accelkit-{place.run_id}-{names.node_name(i)}",
                address=network.node_address(subnet, i) if subnet else None,
            )
            for i in range(topo.nodes)
        ),
        run_dir=str(place.run_dir),
        workdir=str(place.workdir),
        runtime_digest=place.staged.digest,
        runtime_dir=str(place.staged.folder),
        container=_container(config, place, topo, engine, mounts),
        network=NetworkPlan(name=f"accelkit-{place.run_id}", subnet=subnet) if subnet else None,
        timeout=syntax.parse_duration(config.timeout) if config.timeout else None,
    )


def check_program(program: Program, workdir: Path, mounts: tuple[Mount, ...]) -> None:
    """Raise UsageError when a script is not there, or lies where no container can see it."""
    if program.kind == "module":
        return
    path = Path(os.path.normpath(workdir / program.target))
    if not path.exists():
        raise UsageError(
            f"{program.target}: no such script in {workdir}", hint="the script comes after kit's own options"
        )
    if path.is_dir():
        raise UsageError(f"{program.target}: a folder, not a script", hint="for a package use: kit run -m PACKAGE")
    if mounts and not any(path.is_relative_to(m.source) for m in mounts):
        raise UsageError(
            f"{program.target}: outside every mount of the container, which sees {workdir}",
            hint=f"run kit from a folder above it, or add --mount {path.parent}",
        )


def _spec(
    config: RunConfig, program: Program, place: Place, topo: Topology, *, address: str, port: int, workdir: str,
    exchange: str, outputs: str, secrets_dir: str | None, image_digest: str | None = None,
) -> LaunchSpec:  # fmt: skip
    fixed = DETERMINISTIC_THREADS if config.deterministic else None
    seed = DETERMINISTIC_SEED if config.deterministic and config.seed is None else config.seed
    return LaunchSpec(
        run_id=place.run_id,
        nodes=topo.nodes,
        procs_per_node=topo.procs_per_node,
        master_addr=address,
        master_port=port,
        program=program,
        workdir=workdir,
        exchange_dir=exchange,
        output_dir=outputs,
        settings=RuntimeSettings(
            strategy=config.strategy,
            precision=config.precision,
            seed=seed,
            deterministic=config.deterministic,
            grad_accum_steps=config.grad_accum_steps,
        ),
        env={**environment.asked(config.env, place.environ), **place.extra_env},
        ranks_on_machine=topo.world_size,
        threads=config.threads or fixed,
        secrets_dir=secrets_dir,
        image_digest=image_digest,
    )


def _container(
    config: RunConfig, place: Place, topo: Topology, engine: EngineFacts, mounts: tuple[Mount, ...]
) -> ContainerPlan:
    uid, gid = _user(config, root_inside=engine.root_inside)
    passwd = Mount(source=str(place.run_dir / PASSWD), target="/etc/passwd")
    shm = topology.GPU_SHM if topo.gpus else topology.CPU_SHM
    return ContainerPlan(
        image=engine.image,
        user=f"{uid}:{gid}",
        workdir=str(place.shown_workdir or place.workdir),
        mounts=(*mounts, passwd),
        env={
            **environment.of_container(environment.user_name() if uid == os.getuid() else "user"),
            names.ENV_RUN_ID: place.run_id,
        },
        shm_size=syntax.parse_size(config.shm_size) if config.shm_size else shm,
        ulimits=_ulimits(config),
        cpus=syntax.parse_cpus(config.cpus) if config.cpus else None,
        memory=syntax.parse_size(config.memory) if config.memory else None,
        gpus=topo.gpus,
        secrets=secrets.plan(place.run_id, config.secret),
    )


def _mounts(config: RunConfig, place: Place) -> tuple[Mount, ...]:
    """The working folder at its own place, the run's folders, the runtime, a home, and what the user asked for."""
    shown = str(place.shown_workdir or place.workdir)
    own = [
        Mount(source=str(place.workdir), target=shown, read_only=False),
        Mount(source=str(place.staged.folder), target=names.CONTAINER_RUNTIME),
        Mount(source=str(place.run_dir / "exchange"), target=names.CONTAINER_EXCHANGE, read_only=False),
        Mount(source=str(place.run_dir / "outputs"), target=names.CONTAINER_OUTPUTS, read_only=False),
        Mount(source=str(home_folder()), target=names.CONTAINER_HOME, read_only=False),
    ]
    return (*own, *place.extra_mounts, *(_user_mount(text, place.workdir) for text in config.mount))


def passwd_text(uid: int, gid: int, name: str) -> str:
    """A passwd file that knows root and the caller, whose UID no image can know beforehand."""
    lines = ["root:x:0:0:root:/root:/bin/sh"]
    if uid:
        lines.append(f"{name}:x:{uid}:{gid}:{name}:{names.CONTAINER_HOME}:/bin/sh")
    return "\n".join(lines) + "\n"


def home_folder() -> Path:
    """The caller's home inside containers: a cache folder that stays, so that compiled kernels and downloads are kept."""
    return paths.cache_home() / "home"


def _user_mount(text: str, workdir: Path) -> Mount:
    source, target, read_only = syntax.parse_mount(text)
    path = Path(os.path.normpath(workdir / Path(source).expanduser()))
    if not path.exists():
        raise UsageError(
            f"--mount {text}: {path} does not exist", hint="make it first; kit makes no folders as root for you"
        )
    return Mount(
        source=str(path), target=target if target and os.path.isabs(target) else str(path), read_only=read_only
    )


def _user(config: RunConfig, *, root_inside: bool) -> tuple[int, int]:
    if config.user is not None:
        uid, gid = syntax.parse_user(config.user)
        return uid, os.getgid() if gid is None else gid
    return (0, 0) if root_inside else (os.getuid(), os.getgid())


def _ulimits(config: RunConfig) -> tuple[Ulimit, ...]:
    """The defaults and the user's own, each capped by what this machine may give (else the engine refuses to start)."""
    wanted = {"nofile": (NOFILE, NOFILE), "stack": (STACK, STACK)}
    for text in config.ulimit:
        name, soft, hard = syntax.parse_ulimit(text)
        wanted[name] = (soft, hard)
    return tuple(_capped(name, soft, hard) for name, (soft, hard) in sorted(wanted.items()))


def _capped(name: str, soft: int, hard: int) -> Ulimit:
    number = getattr(resource, f"RLIMIT_{name.upper()}", None)
    limit = resource.RLIM_INFINITY if number is None else resource.getrlimit(number)[1]
    if limit == resource.RLIM_INFINITY:
        return Ulimit(name=name, soft=soft, hard=hard)
    return Ulimit(name=name, soft=_least(soft, limit), hard=_least(hard, limit))


def _least(value: int, limit: int) -> int:
    return limit if value < 0 else min(value, limit)


def capped_by_host(config: RunConfig, plan: LaunchPlan) -> list[str]:
    """What the user asked for and the host cannot give, a sentence each."""
    given = {u.name: u for u in (plan.container.ulimits if plan.container else ())}
    found = []
    for text in config.ulimit:
        name, soft, hard = syntax.parse_ulimit(text)
        got = given[name]
        if (got.soft, got.hard) != (soft, hard):
            found.append(f"--ulimit {text}: capped at {got.soft}:{got.hard}, the hard limit of this machine")
    return found
