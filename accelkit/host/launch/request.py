"""What is to be run, and from that a plan: the half of a launch that changes nothing but caches."""

import dataclasses
import importlib.util
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from accelkit.contract import codec
from accelkit.contract.data import data
from accelkit.contract.spec import Program
from accelkit.host import hardware, render
from accelkit.host.config.model import RunConfig
from accelkit.host.engine import images
from accelkit.host.engine.inquiry import Inquiry
from accelkit.host.launch import devices, environment, network, planning
from accelkit.host.launch.backends import base
from accelkit.host.launch.early import EarlyNodes
from accelkit.host.launch.plan import ImagePlan, LaunchPlan, Mount
from accelkit.host.launch.planning import EngineFacts, Place
from accelkit.host.launch.stage import Staged, stage_runtime
from accelkit.host.launch.topology import Topology
from accelkit.host.runs.record import CodeState, ConfigValue
from accelkit.host.runs.store import Store


@data
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
    records_code: bool = True
    """Whether the record gets a copy of the code; tests, which are run again and again, do without."""
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
    inquiry: Inquiry | None = None
    """What the engine was asked already."""


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
        user_dir=request.workdir if request.code_dir else None,
        extra_mounts=request.extra_mounts,
        extra_env=request.extra_env,
    )
    if request.config.on == "local":
        return _prepare_local(request, store, found, place)
    config = request.config
    with closing(request.inquiry or Inquiry(config.image, networks=config.nodes > 1)) as inquiry:
        facts = engine_facts(inquiry, several=config.nodes > 1)
    topo = Topology.resolve(request.config, found.gpus, gpu_image=devices.asks_for_gpus(facts.image))
    reservation = network.PortReservation(config.port) if devices.share_ports(facts.image) else None
    port = reservation.port if reservation else None
    plan = planning.plan_docker(request.config, request.program, place, topo, facts, found, port)
    return Prepared(
        request=request, store=store, plan=_interactive(plan, request), hardware=found, reservation=reservation
    )


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


def image_named(reference: str) -> ImagePlan:
    """The engine's image of that name, tag, ID or digest. Raises EngineUnavailable and ImageNotFound."""
    with closing(Inquiry(reference, networks=False)) as inquiry:
        return engine_facts(inquiry, several=False).image


def engine_facts(inquiry: Inquiry, *, several: bool) -> EngineFacts:
    """The image, how the engine maps users and, for several nodes, the subnets in use.

    Raises EngineUnavailable and ImageNotFound.
    """
    image, engine = inquiry.image(), inquiry.engine()
    subnets = inquiry.subnets() if several else ()
    if image is None or engine is None or subnets is None:
        return _facts_by_sdk(inquiry.reference)
    return EngineFacts(
        image=image,
        taken_subnets=(*subnets, *network.host_routes()) if several else (),
        root_inside=images.remaps_users(engine["SecurityOptions"]),
        devices=images.devices_of(engine),
    )


def _facts_by_sdk(image: str) -> EngineFacts:
    """The same through the SDK, which tells exactly what is wrong."""
    from accelkit.host.engine import client as engine

    client = engine.connect()
    with engine.engine_errors("looking for the image"):
        found = engine.find_image(client, image)
        return EngineFacts(
            image=found,
            taken_subnets=(*images.subnets_of([n.attrs for n in client.networks.list()]), *network.host_routes()),
            root_inside=engine.runs_as_root_inside(client),
            devices=images.devices_of(client.info()),
        )


def torch_is_missing() -> bool:
    """Whether the interpreter of local ranks lacks torch; looks for it without importing it."""
    return importlib.util.find_spec("torch") is None


def dry_run(prepared: Prepared) -> str:
    """The plan and every artefact, as text: a heading a file. Values that look like secrets are masked."""
    plan = codec.dumps(render.masked(codec.to_dict(prepared.plan)))
    files = {"plan.json": plan, **base.make(prepared.plan).artefacts()}
    return "\n".join(f"# ---- {name}\n{text}" for name, text in files.items())
