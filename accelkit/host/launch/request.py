"""What is to be run, and from that a plan: the half of a launch that changes nothing but caches."""

import dataclasses
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from accelkit.contract import codec
from accelkit.contract.spec import Program
from accelkit.host import hardware
from accelkit.host.config.model import RunConfig
from accelkit.host.launch import environment, network, planning
from accelkit.host.launch.backends import base
from accelkit.host.launch.early import EarlyNodes
from accelkit.host.launch.plan import LaunchPlan, Mount
from accelkit.host.launch.planning import EngineFacts, Place
from accelkit.host.launch.stage import Staged, stage_runtime
from accelkit.host.launch.topology import Topology
from accelkit.host.runs.record import CodeState, ConfigValue
from accelkit.host.runs.store import Store

if TYPE_CHECKING:
    import docker


@dataclass(frozen=True, kw_only=True)
class Request:
    """A run that somebody asks for."""

    config: RunConfig
    values: Mapping[str, ConfigValue]
    """The whole config with origins, for the record."""
    program: Program
    command: tuple[str, ...]
    """As it was typed."""
    workdir: Path
    """Where `kit` was typed; records lie under it."""
    code_dir: Path | None = None
    """The code that runs, when it is not `workdir` itself."""
    shown_workdir: Path | None = None
    """Where containers see the code; the same place as on the host unless it is given."""
    code: CodeState | None = None
    """The recorded code that `code_dir` was laid out from; captured from `workdir` when it is None."""
    reproduces: str | None = None
    extra_mounts: tuple[Mount, ...] = ()
    extra_env: Mapping[str, str] = field(default_factory=dict)
    staged_extra: tuple[str, ...] = ()
    """More files of the package to stage."""
    staged: Staged | None = None
    """An earlier copy of the runtime instead of this installation's."""
    interactive: bool = False
    early: EarlyNodes | None = None
    """Local nodes of this run that are up already."""


@dataclass(kw_only=True)
class Prepared:
    """A request with its plan. Nothing was started, nothing is recorded."""

    request: Request
    store: Store
    plan: LaunchPlan
    hardware: hardware.Hardware
    reservation: network.PortReservation | None = None
    """Holds the port of local ranks until the run has ended."""


def prepare(request: Request) -> Prepared:
    """Find the hardware and, for containers, the image; stage the runtime; plan. Raises KitError for what cannot be run."""
    store = Store(request.workdir)
    run_id = request.early.run_id if request.early else store.new_id()
    staged = request.early.staged if request.early else request.staged or stage_runtime(request.staged_extra)
    found = hardware.probe()
    place = Place(
        run_id=run_id,
        run_dir=store.run_dir(run_id),
        workdir=request.code_dir or request.workdir,
        shown_workdir=request.shown_workdir,
        staged=staged,
        environ=environment.current(),
        python=sys.executable,
        extra_mounts=request.extra_mounts,
        extra_env=request.extra_env,
    )
    if request.config.on == "local":
        return _prepare_local(request, store, found, place)
    facts = engine_facts(request.config.image)
    topo = Topology.resolve(request.config, found.gpus, gpu_image=facts.image.hardware != "cpu")
    plan = planning.plan_docker(request.config, request.program, place, topo, facts)
    return Prepared(request=request, store=store, plan=_interactive(plan, request), hardware=found)


def _prepare_local(request: Request, store: Store, found: hardware.Hardware, place: Place) -> Prepared:
    topo = Topology.resolve(request.config, found.gpus, gpu_image=True)
    planning.check_program(request.program, place.workdir, ())
    reservation = network.PortReservation(request.config.port)
    plan = planning.plan_local(request.config, request.program, place, topo, reservation.port)
    return Prepared(
        request=request, store=store, plan=_interactive(plan, request), hardware=found, reservation=reservation
    )


def _interactive(plan: LaunchPlan, request: Request) -> LaunchPlan:
    if not request.interactive:
        return plan
    return dataclasses.replace(plan, spec=dataclasses.replace(plan.spec, interactive=True))


def engine_facts(image: str) -> EngineFacts:
    """Ask the engine for the image, the subnets in use and how it maps users. Raises EngineUnavailable and ImageNotFound."""
    from accelkit.host.engine import client as engine

    client = engine.connect()
    with engine.engine_errors("looking for the image"):
        found = engine.find_image(client, image)
        return EngineFacts(
            image=found,
            taken_subnets=(*_subnets(client), *network.host_routes()),
            root_inside=engine.runs_as_root_inside(client),
        )


def _subnets(client: "docker.DockerClient") -> tuple[str, ...]:
    """Every subnet of every network of the engine."""
    pools = [(item.attrs.get("IPAM") or {}).get("Config") or [] for item in client.networks.list()]
    return tuple(part["Subnet"] for pool in pools for part in pool if part.get("Subnet"))


def torch_is_missing() -> bool:
    """Whether the interpreter of local ranks lacks torch; looks for it without importing it."""
    return importlib.util.find_spec("torch") is None


def dry_run(prepared: Prepared) -> str:
    """The plan and every artefact, as text: a heading a file."""
    files = {"plan.json": codec.dumps(prepared.plan), **base.make(prepared.plan).artefacts()}
    return "\n".join(f"# ---- {name}\n{text}" for name, text in files.items())
