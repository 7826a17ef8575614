"""What facts mean for runs and builds. Pure: each check takes the facts and gives findings; CHECKS is the order in which they are told."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal

from accelkit.contract.data import data
from accelkit.host.doctor.facts import PLUGINS, TRUST, EngineFacts, Facts, ImageFacts
from accelkit.host.engine import images
from accelkit.host.errors import UsageError
from accelkit.host.image import catalogue, fit
from accelkit.host.launch import tpu
from accelkit.host.launch.devices import GPU_IMAGE

State = Literal["ok", "none", "warning", "failed"]
"""`none`: it is not here, and nothing needs it."""
GIB: Final = 1 << 30
LITTLE_DISK: Final = 10 * GIB
"""Free space with which the larger images cannot be built."""
LEAST_DISK: Final = GIB
LITTLE_SHM: Final = GIB
"""Loaders with workers pass their batches through /dev/shm."""
CLOCK: Final = 5.0
"""Seconds by which clocks may differ."""
_FEATURES: Final = {
    "MemoryLimit": ("--memory", "boot with cgroup_enable=memory"),
    "SwapLimit": ("a limit of swap beside --memory", "boot with swapaccount=1"),
    "CpuCfsQuota": ("--cpus", "a kernel with CONFIG_CFS_BANDWIDTH"),
    "PidsLimit": ("a limit of processes", "a kernel with CONFIG_CGROUP_PIDS"),
}
"""What the engine tells that it can -> what does not hold without it, and what mends it."""


@data
class Finding:
    """One line of the report."""

    name: str
    state: State
    text: str
    remedy: str = ""
    """What to do or type; empty where nothing is to be done."""


def examine(facts: Facts) -> list[Finding]:
    """All findings, in the order of CHECKS."""
    return [finding for check in CHECKS for finding in check(facts)]


def _wants_containers(facts: Facts) -> bool:
    return facts.config is None or facts.config.run.on != "local"


def _bad(facts: Facts) -> State:
    """What stands in the way of containers is a failure only where runs are to be in containers."""
    return "failed" if _wants_containers(facts) else "warning"


def config(facts: Facts) -> Iterator[Finding]:
    """The merged config."""
    if facts.config_problem:
        yield Finding(name="config", state="failed", text=facts.config_problem, remedy="kit config check")
    elif facts.config_files:
        yield Finding(name="config", state="ok", text=" and ".join(facts.config_files))
    else:
        yield Finding(name="config", state="none", text="no kit.yaml: defaults hold", remedy="kit config --project")


def engine(facts: Facts) -> Iterator[Finding]:
    """An engine that answers, what it says of itself, and whose root its containers' root is."""
    if facts.engine is None:
        why = facts.engine_problem
        remedy = (why.hint if why else None) or "start Docker"
        yield Finding(name="engine", state=_bad(facts), text=why.message if why else "none", remedy=remedy)
        return
    info = facts.engine.info
    told = f"{info.get('ServerVersion', '')} at {facts.engine.place}, {info.get('OperatingSystem', '')}"
    yield Finding(name="engine", state="ok", text=told.rstrip(", "))
    for line in info.get("Warnings") or ():
        yield Finding(name="engine", state="warning", text=str(line), remedy="docker info explains")
    remapped = images.remaps_users(info.get("SecurityOptions"))
    whose = "root inside is you outside (rootless or remapped)" if remapped else "ranks run as you, by number"
    yield Finding(name="users", state="ok", text=whose)


def commands(facts: Facts) -> Iterator[Finding]:
    """The docker command and its plug-ins: Compose for every run in containers, Buildx for every build."""
    if facts.commands.get("docker") is None:
        yield Finding(
            name="docker", state=_bad(facts), text="the command is not on PATH", remedy="install Docker's command line"
        )
        return
    for name in PLUGINS:
        found = facts.commands.get(name)
        what = "runs need it" if name == "compose" else "builds need it"
        if found is None:
            remedy = f"install the plug-in docker-{name}"
            yield Finding(name=name, state=_bad(facts), text=f"docker {name} is not there: {what}", remedy=remedy)
        else:
            yield Finding(name=name, state="ok", text=found)


def store(facts: Facts) -> Iterator[Finding]:
    """The kind of image store: builds of equal digests and OCI archives want containerd's."""
    if facts.engine is None:
        return
    status = facts.engine.info.get("DriverStatus") or ()
    if any("containerd" in str(value) for row in status for value in row):
        yield Finding(name="image store", state="ok", text="containerd's")
        return
    yield Finding(
        name="image store",
        state="warning",
        text="the engine's own: build --reproducible, --verify and --output oci need containerd's",
        remedy='"features": {"containerd-snapshotter": true} in the engine\'s daemon.json; it lists other images then',
    )


def disk(facts: Facts) -> Iterator[Finding]:
    """Space where records, the cache and images lie."""
    for folder, free in facts.free.items():
        state: State = "failed" if free < LEAST_DISK else "warning" if free < LITTLE_DISK else "ok"
        remedy = "docker system prune; kit runs remove ID" if state != "ok" else ""
        yield Finding(name="disk", state=state, text=f"{_size(free)} free in {folder}", remedy=remedy)


def limits(facts: Facts) -> Iterator[Finding]:
    """Limits that containers can be given, and those that this shell is under."""
    if facts.engine is not None:
        info = facts.engine.info
        missing = [name for name in _FEATURES if info.get(name) is False]
        for name in missing:
            what, remedy = _FEATURES[name]
            yield Finding(name="cgroups", state="warning", text=f"{what} has no effect", remedy=remedy)
        if not missing:
            yield Finding(name="cgroups", state="ok", text=f"version {info.get('CgroupVersion', '1')}")
    if facts.memory_limit is not None:
        whole = _size(facts.machine.memory)
        text = f"this shell may use {_size(facts.memory_limit)} of the machine's {whole}: so may local ranks"
        yield Finding(name="memory", state="ok", text=text)


def shared_memory(facts: Facts) -> Iterator[Finding]:
    """Shared memory of this machine, which local ranks share; containers get their own."""
    if facts.shm is None:
        yield Finding(
            name="shm", state="warning", text="no /dev/shm: loaders of local ranks have no workers", remedy="mount it"
        )
    elif facts.shm < LITTLE_SHM:
        remedy = "enlarge it (docker run --shm-size where this is a container), or run in containers: --shm-size"
        yield Finding(name="shm", state="warning", text=f"{_size(facts.shm)} for all local ranks", remedy=remedy)
    else:
        yield Finding(name="shm", state="ok", text=f"{_size(facts.shm)} for local ranks; containers have their own")


def nvidia(facts: Facts) -> Iterator[Finding]:
    """GPUs, their driver, and the engine's way of passing them on."""
    machine = facts.machine
    if not machine.gpus:
        if fit.present(catalogue.devices(GPU_IMAGE)):
            text, remedy = "the driver's files are there, and nvidia-smi lists no GPU", "mend or reinstall the driver"
            yield Finding(name="nvidia", state="warning", text=text, remedy=remedy)
        else:
            yield Finding(name="nvidia", state="none", text="no driver")
        return
    kinds = ", ".join(sorted({gpu.name for gpu in machine.gpus}))
    yield Finding(
        name="nvidia", state="ok", text=f"{len(machine.gpus)} GPUs ({kinds}), driver {machine.gpus[0].driver}"
    )
    if facts.engine is not None and facts.engine.is_here:
        yield from _passing_on(facts, facts.engine)


def _passing_on(facts: Facts, found: EngineFacts) -> Iterator[Finding]:
    here = {gpu.uuid for gpu in facts.machine.gpus}
    by_uuid = {name for name in found.cdi if name.startswith("GPU-")}
    if stale := sorted(by_uuid - here):
        text = f"CDI specifications name GPUs that are not here: {', '.join(stale)}"
        yield Finding(name="cdi", state="warning", text=text, remedy="nvidia-ctk cdi generate writes them anew")
    if here <= by_uuid:
        yield Finding(name="cdi", state="ok", text="every GPU by UUID")
    elif "nvidia" in found.devices.runtimes:
        yield Finding(name="nvidia runtime", state="ok", text="the engine has it")
    else:
        yield Finding(
            name="nvidia runtime",
            state=_bad(facts) if facts.config and facts.config.run.image == GPU_IMAGE else "warning",
            text="the engine has neither NVIDIA's runtime nor a CDI specification of these GPUs",
            remedy="install the NVIDIA Container Toolkit, type: nvidia-ctk runtime configure --runtime=docker, and restart Docker",
        )


def slice_of_tpus(facts: Facts) -> Iterator[Finding]:
    """A TPU, and the variables by which it knows its place in a slice."""
    if not facts.machine.tpu:
        yield Finding(name="tpu", state="none", text="none")
        return
    try:
        tpu.check(facts.environ, 1)
    except UsageError as error:
        yield Finding(name="tpu", state="warning", text=error.message, remedy=error.hint or "")
    else:
        yield Finding(name="tpu", state="ok", text="there")


def hardware_images(facts: Facts) -> Iterator[Finding]:
    """Each image of the catalogue: whether this machine is one for it (driver and GPUs included), and whether it is built."""
    configured = facts.config.run.image if facts.config else ""
    for image in facts.images:
        wanted = image.name == configured and _wants_containers(facts)
        yield _image(image, wanted=wanted, with_engine=facts.engine is not None)


def _image(image: ImageFacts, *, wanted: bool, with_engine: bool) -> Finding:
    name = f"image {image.name}"
    if image.problem:
        remedy = "mend the file, or reinstall accelkit"
        return Finding(name=name, state="failed" if wanted else "warning", text=image.problem, remedy=remedy)
    if image.here != "yes":
        absent = image.here.startswith("not found")
        state: State = "failed" if wanted else "none" if absent else "warning"
        remedy = "" if absent else f"kit images {image.name} lists variants that fit"
        return Finding(name=name, state=state, text=image.here, remedy=remedy)
    if not with_engine:
        return Finding(name=name, state="none", text="not looked for: that takes an engine")
    if image.built:
        return Finding(name=name, state="ok", text="built")
    return Finding(name=name, state="failed" if wanted else "none", text="not built", remedy=f"kit build {image.name}")


def local_ranks(facts: Facts) -> Iterator[Finding]:
    """What ranks on this interpreter need."""
    if facts.torch is not None:
        yield Finding(name="local", state="ok", text=f"torch {facts.torch} beside this kit")
        return
    state: State = "none" if _wants_containers(facts) else "failed"
    yield Finding(
        name="local",
        state=state,
        text="no torch beside this kit: only containers",
        remedy="pip install 'accelkit[runtime]'",
    )


def lock(facts: Facts) -> Iterator[Finding]:
    """kit.lock against what is asked for now."""
    if not facts.has_lock:
        yield Finding(name="kit.lock", state="none", text="none here", remedy="kit lock")
    elif facts.drift:
        yield Finding(name="kit.lock", state="warning", text=facts.drift, remedy=facts.drift_remedy)
    elif facts.engine is None or facts.config is None:
        yield Finding(name="kit.lock", state="none", text="not looked at: that takes an engine and a config")
    else:
        yield Finding(name="kit.lock", state="ok", text="fits")


def proxies(facts: Facts) -> Iterator[Finding]:
    """Proxies of this shell, which kit hands to builds, and of the engine, which pulls by itself."""
    mine = _proxy(facts.environ)
    if not mine:
        yield Finding(name="proxy", state="none", text="none")
    elif facts.engine and not (facts.engine.info.get("HttpsProxy") or facts.engine.info.get("HttpProxy")):
        yield Finding(
            name="proxy",
            state="warning",
            text="this shell has one, and the engine, which pulls images by itself, has none",
            remedy='"proxies" in the engine\'s daemon.json',
        )
    else:
        yield Finding(name="proxy", state="ok", text="this shell's goes to builds, the engine has its own")


def trust(facts: Facts) -> Iterator[Finding]:
    """Certificates of one's own: that they are there, and that builds get them."""
    for name in facts.missing_trust:
        yield Finding(
            name="certificates",
            state="warning",
            text=f"{name} names {facts.environ[name]}, which is not there",
            remedy=f"unset {name}",
        )
    if facts.missing_ca and facts.config is not None:
        text = f"builds are to get {facts.config.build.ca}, which is not there"
        yield Finding(
            name="certificates",
            state=_bad(facts),
            text=text,
            remedy="name a file that is there as build.ca in kit.yaml",
        )
        return
    named = [name for name in TRUST if facts.environ.get(name) and name not in facts.missing_trust]
    if not named and not facts.missing_trust:
        yield Finding(name="certificates", state="none", text="none of your own")
    elif named and facts.config is not None and facts.config.build.ca:
        yield Finding(name="certificates", state="ok", text=f"builds get {facts.config.build.ca}")
    elif named:
        text = f"{named[0]} names some that builds do not get"
        remedy = f'kit build ... --ca "${named[0]}", or build.ca in kit.yaml'
        yield Finding(name="certificates", state="warning", text=text, remedy=remedy)


def clock(facts: Facts) -> Iterator[Finding]:
    """This machine's clock, and the engine's: signatures and certificates are refused by a wrong one, and records are ordered by it."""
    if facts.now < facts.newest_file:
        yield Finding(
            name="clock", state="warning", text="it is before this kit was installed", remedy="set it: timedatectl"
        )
    elif facts.engine is not None and abs(facts.engine.clock) > CLOCK:
        way = "ahead of" if facts.engine.clock > 0 else "behind"
        text = f"the engine's is {abs(facts.engine.clock):.0f} s {way} this machine's"
        yield Finding(name="clock", state="warning", text=text, remedy="set the one that is wrong: timedatectl")
    else:
        yield Finding(name="clock", state="ok", text="in order")


def _proxy(environ: Mapping[str, Any]) -> str:
    names = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy")
    return next((str(environ[name]) for name in names if environ.get(name)), "")


def _size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / (1 << 20):.0f} MiB"


CHECKS: Final[tuple[Callable[[Facts], Iterator[Finding]], ...]] = (
    config, engine, commands, store, disk, limits, shared_memory, nvidia, slice_of_tpus, hardware_images, local_ranks, lock,
    proxies, trust, clock,
)  # fmt: skip
