"""From a config and what the machine has to a LaunchPlan. Reads a little (limits, the script's existence), changes nothing."""

import os
import resource
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Final

from accelkit.contract import names
from accelkit.contract.data import data
from accelkit.contract.spec import LaunchSpec, Program, RuntimeSettings
from accelkit.contract.strategies import by_part
from accelkit.host.config import syntax
from accelkit.host.config.model import RunConfig
from accelkit.host.errors import UsageError
from accelkit.host.hardware import Hardware
from accelkit.host.image import catalogue
from accelkit.host.launch import devices, environment, folders, network, secrets, topology
from accelkit.host.launch.plan import (
    ContainerPlan,
    DevicePlan,
    EngineDevices,
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


@data
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
    user_dir: Path | None = None
    """Where `kit` was typed, when the code that runs was laid out elsewhere: what is mounted and is no code lies there."""
    extra_mounts: tuple[Mount, ...] = ()
    extra_env: Mapping[str, str] = field(default_factory=dict)


@data
class EngineFacts:
    """What the engine told: the image, its networks, whether its users are remapped."""

    image: ImagePlan
    taken_subnets: tuple[str, ...] = ()
    root_inside: bool = False
    """Rootless or remapped: the caller is root inside the container."""
    devices: EngineDevices = field(default_factory=EngineDevices)


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


def plan_docker(
    config: RunConfig,
    program: Program,
    place: Place,
    topo: Topology,
    engine: EngineFacts,
    machine: Hardware,
    port: int | None = None,
) -> LaunchPlan:
    """A plan of one container a node on one engine; several nodes get a network of their own.

    `port`: one of this machine's that is reserved, where containers use its own.
    """
    user = _user(config, root_inside=engine.root_inside)
    mounts = _mounts(config, place, engine.image, user[0])
    check_program(program, place.workdir, mounts, place.shown_workdir)
    devices.check_strategy(engine.image, config.strategy)
    _check_cpus(config, engine.devices)
    given = devices.decide(
        engine.image, topo.nodes, topo.gpus, machine, engine.devices, environment.asked(config.env, place.environ),
        wanted=config.gpus is None or syntax.parse_gpus(config.gpus) != 0,
    )  # fmt: skip
    several = topo.nodes > 1
    subnet = network.free_subnet(place.run_id, topo.nodes, engine.taken_subnets) if several else None
    spec = _spec(
        config, program, place, topo,
        address=names.node_name(0) if several else "127.0.0.1",
        port=port or config.port or network.CONTAINER_PORT,
        workdir=str(place.shown_workdir or place.workdir),
        exchange=names.CONTAINER_EXCHANGE, outputs=names.CONTAINER_OUTPUTS,
        secrets_dir=names.CONTAINER_SECRETS if config.secret else None, image_digest=engine.image.id,
    )  # fmt: skip
    return LaunchPlan(
        backend="docker",
        spec=spec,
        nodes=_containers(place.run_id, topo.nodes, subnet),
        run_dir=str(place.run_dir),
        workdir=str(place.workdir),
        runtime_digest=place.staged.digest,
        runtime_dir=str(place.staged.folder),
        container=_container(config, place, topo, engine.image, mounts, user, given),
        network=NetworkPlan(name=f"accelkit-{place.run_id}", subnet=subnet) if subnet else None,
        timeout=syntax.parse_duration(config.timeout) if config.timeout else None,
    )


def _containers(run_id: str, nodes: int, subnet: str | None) -> tuple[NodePlan, ...]:
    """A container a node, with a fixed address where they have a network."""
    return tuple(
        NodePlan(
            index=i,
            name=names.node_name(i),
            container_name=f"accelkit-{run_id}-{names.node_name(i)}",
            address=network.node_address(subnet, i) if subnet else None,
        )
        for i in range(nodes)
    )


def check_program(program: Program, workdir: Path, mounts: tuple[Mount, ...], shown: Path | None = None) -> None:
    """Raise UsageError when a script is not there, or lies where no container can see it. `shown`: where containers see `workdir`."""
    if program.kind == "module":
        return
    seen = Path(os.path.normpath((shown or workdir) / program.target))
    path = _on_host(seen, mounts) if mounts else seen
    if path is None and (workdir / program.target).exists():
        raise UsageError(
            f"{program.target}: outside every mount of the container, which sees {shown or workdir}",
            hint=_where_instead(seen, mounts),
        )
    if path is None or not path.exists():
        raise UsageError(
            f"{program.target}: no such script in {workdir}", hint="the script comes after kit's own options"
        )
    if path.is_dir():
        raise UsageError(f"{program.target}: a folder, not a script", hint="for a package use: kit run -m PACKAGE")
    if mounts:
        _check_link(program.target, path.resolve(), mounts)


def _check_link(target: str, real: Path, mounts: tuple[Mount, ...]) -> None:
    """Raise UsageError when a script turns out to be a link that no container can follow."""
    if not any(real.is_relative_to(Path(m.source).resolve()) for m in mounts):
        raise UsageError(
            f"{target}: a link to {real}, which is outside every mount of the container",
            hint=f"add --mount {real.parent}",
        )


def _on_host(seen: Path, mounts: tuple[Mount, ...]) -> Path | None:
    """The host's path of what containers see at `seen`; None where nothing of the host is mounted."""
    holding = [m for m in mounts if seen.is_relative_to(m.target)]
    if not holding:
        return None
    nearest = max(holding, key=lambda m: len(m.target))
    return Path(nearest.source) / seen.relative_to(nearest.target)


def _where_instead(path: Path, mounts: tuple[Mount, ...]) -> str:
    """What to type for a script of the host that containers do not see at its own place."""
    for mount in mounts:
        if path.is_relative_to(mount.source):
            return f"containers see it as {Path(mount.target) / path.relative_to(mount.source)}: run that"
    return f"run kit from a folder above it, or add --mount {path.parent}"


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
            strategy_options=by_part(vars(config)),
        ),
        env={**environment.asked(config.env, place.environ), **place.extra_env},
        ranks_on_machine=topo.world_size,
        threads=config.threads or fixed,
        secrets_dir=secrets_dir,
        image_digest=image_digest,
    )


def _container(
    config: RunConfig, place: Place, topo: Topology, image: ImagePlan, mounts: tuple[Mount, ...], user: tuple[int, int],
    given: DevicePlan,
) -> ContainerPlan:  # fmt: skip
    uid, gid = user
    passwd = Mount(source=str(place.run_dir / folders.PASSWD), target="/etc/passwd")
    by_image = shm_of(image.hardware)
    shm = max(topology.GPU_SHM, by_image) if topo.gpus else by_image
    return ContainerPlan(
        image=image,
        user=f"{uid}:{gid}",
        workdir=str(place.shown_workdir or place.workdir),
        mounts=(*mounts, passwd),
        env={
            **environment.of_container(environment.user_name() if uid == os.getuid() else "user"),
            names.ENV_RUN_ID: place.run_id,
        },
        shm_size=syntax.parse_size(config.shm_size) if config.shm_size else shm,
        ulimits=_ulimits(config, memlock=given.memlock),
        cpus=syntax.parse_cpus(config.cpus) if config.cpus else None,
        memory=syntax.parse_size(config.memory) if config.memory else None,
        gpus=topo.gpus,
        devices=given,
        secrets=secrets.plan(place.run_id, config.secret),
    )


def _check_cpus(config: RunConfig, there: EngineDevices) -> None:
    """Raise UsageError where a container would be given more CPUs than the engine's machine has, which no engine starts."""
    if config.cpus and there.cpus and syntax.parse_cpus(config.cpus) > there.cpus:
        raise UsageError(
            f"--cpus {config.cpus}: the engine's machine has {there.cpus}",
            hint=f"--cpus {there.cpus} or less; without it a node may use all",
        )


def _mounts(config: RunConfig, place: Place, image: ImagePlan, uid: int) -> tuple[Mount, ...]:
    """The working folder at its own place, the run's folders, the runtime, a home, and what the user asked for."""
    shown = str(place.shown_workdir or place.workdir)
    own = [
        Mount(source=str(place.workdir), target=shown, read_only=False),
        Mount(source=str(place.staged.folder), target=names.CONTAINER_RUNTIME),
        Mount(source=str(place.run_dir / "exchange"), target=names.CONTAINER_EXCHANGE, read_only=False),
        Mount(source=str(place.run_dir / "outputs"), target=names.CONTAINER_OUTPUTS, read_only=False),
        *folders.home_mounts(uid, image),
    ]
    taken = {mount.target for mount in own} | {"/", "/etc/passwd"}
    return (*own, *place.extra_mounts, *(_user_mount(text, place, taken) for text in config.mount))


def passwd_text(uid: int, gid: int, name: str) -> str:
    """A passwd file that knows root and the caller, whose UID no image can know beforehand."""
    lines = ["root:x:0:0:root:/root:/bin/sh"]
    if uid:
        lines.append(f"{name}:x:{uid}:{gid}:{name}:{names.CONTAINER_HOME}:/bin/sh")
    return "\n".join(lines) + "\n"


def _user_mount(text: str, place: Place, taken: set[str]) -> Mount:
    """The mount that the user asks for; its target joins `taken`. Raises UsageError for what no engine can mount."""
    source, target, read_only = syntax.parse_mount(text)
    path = Path(os.path.normpath(place.workdir / Path(source).expanduser()))
    if not path.exists() and place.user_dir is not None:
        path = Path(os.path.normpath(place.user_dir / Path(source).expanduser()))
    if not path.exists():
        raise UsageError(
            f"--mount {text}: {path} does not exist", hint="make it first; kit makes no folders as root for you"
        )
    there = os.path.normpath(target or path)
    if there in taken or Path(there).is_relative_to("/proc"):
        why = "the container's own" if there == "/" or there.startswith("/proc") else "mounted already"
        raise UsageError(f"--mount {text}: {there} is {why}", hint=f"give it another place: --mount {source}:/data")
    taken.add(there)
    return Mount(source=str(path), target=there, read_only=read_only)


def _user(config: RunConfig, *, root_inside: bool) -> tuple[int, int]:
    if config.user is not None:
        uid, gid = syntax.parse_user(config.user)
        return uid, os.getgid() if gid is None else gid
    return (0, 0) if root_inside else (os.getuid(), os.getgid())


def shm_of(hardware: str) -> int:
    """Bytes of /dev/shm by default: what the image's data says, or a CPU image's where it is of no catalogue."""
    return syntax.parse_size(catalogue.load(hardware).shm) if hardware in catalogue.names() else topology.CPU_SHM


def _ulimits(config: RunConfig, *, memlock: bool) -> tuple[Ulimit, ...]:
    """The defaults and the user's own, each capped by what this machine may give (else the engine refuses to start)."""
    wanted = {"nofile": (NOFILE, NOFILE), "stack": (STACK, STACK)}
    wanted |= {"memlock": (-1, -1)} if memlock else {}
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
