"""Everything that `kit doctor` looks at, read once and judged by nobody here."""

import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from accelkit.contract.data import data
from accelkit.host import hardware, process
from accelkit.host.config.model import Config
from accelkit.host.errors import EngineUnavailable, KitError
from accelkit.host.hardware import Hardware
from accelkit.host.launch.plan import EngineDevices

if TYPE_CHECKING:
    from docker import DockerClient

TRUST: Final = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")
"""Variables that name certificates of one's own; the programs that kit uses read one or another of them."""
PLUGINS: Final = ("buildx", "compose")
_PATIENCE: Final = 10.0
_CGROUP_LIMITS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_SHM: Final = Path("/dev/shm")  # noqa: S108  (looked at, not written)


@data
class ImageFacts:
    """An image of the catalogue."""

    name: str
    here: str
    """`yes`, or why this machine is not one for it."""
    built: bool
    problem: str = ""
    """What is damaged in its folder; the rest says nothing then."""


@data
class EngineFacts:
    """An engine that answers."""

    place: str
    info: Mapping[str, Any]
    """What it tells of itself."""
    is_here: bool
    """Whether it runs on this machine."""
    clock: float
    """Seconds that its clock is ahead of ours."""
    devices: EngineDevices
    cdi: tuple[str, ...]
    """Names of NVIDIA devices in its CDI specifications."""


@data
class Facts:
    """A machine as runs and builds find it."""

    machine: Hardware
    config: Config | None
    """None where it has problems."""
    config_files: tuple[str, ...]
    config_problem: str
    engine: EngineFacts | None
    engine_problem: KitError | None
    """Why there is no engine."""
    commands: Mapping[str, str | None]
    """docker and its plug-ins -> version, None where they are not there."""
    free: Mapping[str, int]
    """Folder -> bytes free on its disk."""
    shm: int | None
    """Bytes of this machine's /dev/shm; None where there is none."""
    memory_limit: int | None
    """Bytes that this shell's cgroup allows; None without a limit."""
    images: tuple[ImageFacts, ...]
    drift: str
    """What of kit.lock does not fit any more; empty where it fits or there is none."""
    drift_remedy: str
    """What mends that."""
    has_lock: bool
    torch: str | None
    """Version beside this kit, for ranks on this interpreter."""
    newest_file: float
    """Seconds since the epoch at which this kit was installed: no right clock is behind it."""
    now: float
    environ: Mapping[str, str]
    missing_trust: tuple[str, ...]
    """Those of TRUST that name a file which is not there."""
    missing_ca: bool = False
    """Whether the config names certificates for builds which are not there."""


def read(environ: Mapping[str, str], cwd: Path, config_file: Path | None = None) -> Facts:
    """Look at everything. Asks the engine and the docker command; changes nothing, and raises nothing for what is wrong."""
    config, files, config_problem = _config(environ, cwd, config_file)
    engine, engine_problem = _engine()
    limit = _memory_limit()
    drift, drift_remedy = _drift(config, cwd) if engine is not None else ("", "")
    machine = hardware.probe()
    return Facts(
        machine=machine,
        config=config,
        config_files=files,
        config_problem=config_problem,
        engine=engine,
        engine_problem=engine_problem,
        commands=_commands(),
        free=_free(cwd, engine),
        shm=_total(_SHM),
        memory_limit=limit if limit is not None and limit < machine.memory else None,
        images=_images(machine, with_engine=engine is not None),
        drift=drift,
        drift_remedy=drift_remedy,
        has_lock=(cwd / "kit.lock").exists(),
        torch=_torch(),
        newest_file=Path(__file__).stat().st_mtime,
        now=time.time(),
        environ=environ,
        missing_trust=tuple(name for name in TRUST if environ.get(name) and not Path(environ[name]).exists()),
        missing_ca=bool(config and config.build.ca) and not _place(cwd, config).exists(),
    )


def _place(cwd: Path, config: Config | None) -> Path:
    """Where builds look for the config's certificates."""
    return cwd / Path((config.build.ca if config else None) or "").expanduser()


def _config(
    environ: Mapping[str, str], cwd: Path, config_file: Path | None
) -> tuple[Config | None, tuple[str, ...], str]:
    from accelkit.host import paths
    from accelkit.host.config import loading

    candidates = (config_file, cwd / "kit.yaml", paths.user_config())
    files = tuple(str(path) for path in candidates if path is not None and path.is_file())
    try:
        found = loading.load(given={}, config_file=config_file, cwd=cwd, environ=environ)
    except KitError as error:
        return None, files, error.message
    return found.config, files, ""


def _engine() -> tuple[EngineFacts | None, KitError | None]:
    from accelkit.host.engine import client as engine
    from accelkit.host.engine import images

    try:
        client = engine.connect(timeout=int(_PATIENCE))
        with engine.engine_errors("asking the engine about itself"):
            before = time.time()
            info = client.info()
            after = time.time()
    except KitError as error:
        return None, error
    devices = images.devices_of(info)
    place = engine.place()
    return EngineFacts(
        place=place,
        info=info,
        is_here=place.startswith(("unix://", "/")),
        clock=_ahead(str(info.get("SystemTime", "")), before, after),
        devices=devices,
        cdi=_cdi(devices),
    ), None


def _ahead(told: str, before: float, after: float) -> float:
    """Seconds by which the engine's time lies outside of the moments between which it was told; 0 where it told none."""
    with suppress(ValueError):
        # Python 3.10 reads six digits of a second and no Z; engines write nine.
        there = datetime.fromisoformat(f"{told[:19]}+00:00").timestamp()
        return there + 1 - before if there + 1 < before else max(there - after, 0.0)
    return 0.0


def _cdi(devices: EngineDevices) -> tuple[str, ...]:
    from accelkit.host.image import catalogue
    from accelkit.host.launch.devices import GPU_IMAGE, specified

    kind = catalogue.devices(GPU_IMAGE).cdi
    return tuple(sorted({n for f in devices.cdi_folders for n in specified(Path(f), kind)})) if kind else ()


def _commands() -> dict[str, str | None]:
    words = {"docker": ["docker", "--version"], **{name: ["docker", name, "version"] for name in PLUGINS}}
    return {name: _said(argv) for name, argv in words.items()}


def _said(argv: list[str]) -> str | None:
    """The first line of what a program says, None where it is not there or fails."""
    try:
        done = process.run(argv, timeout=_PATIENCE)
    except KitError:
        return None
    return (done.stdout.strip().splitlines() or [""])[0] if done.code == 0 else None


def _free(cwd: Path, engine: EngineFacts | None) -> dict[str, int]:
    """Of the folder where runs are recorded, of the cache, and of the engine where its folder can be seen from here."""
    from accelkit.host import paths

    folders = [cwd, _existing(paths.cache_home())]
    if engine is not None and engine.is_here:
        folders.append(Path(str(engine.info.get("DockerRootDir", ""))))
    found: dict[str, int] = {}
    seen: set[int] = set()
    for folder in folders:
        with suppress(OSError):
            device = folder.stat().st_dev
            if device not in seen:
                found[str(folder)] = shutil.disk_usage(folder).free
            seen.add(device)
    return found


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def _total(folder: Path) -> int | None:
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_frsize * found.f_blocks


def _memory_limit() -> int | None:
    """Of the cgroup that is this shell's whole world, as a container sees it."""
    for name in _CGROUP_LIMITS:
        with suppress(OSError, ValueError):
            return int(Path(name).read_text())
    return None


def _images(machine: Hardware, *, with_engine: bool) -> tuple[ImageFacts, ...]:
    from accelkit.host.engine import client as engine
    from accelkit.host.image import catalogue, fit, variants

    client = engine.connect() if with_engine else None
    found = []
    for name in catalogue.names():
        try:
            spec, known = catalogue.load(name), catalogue.compatibility(name)
            default = variants.choose(spec, known, variants.Wanted())
        except KitError as error:
            found.append(ImageFacts(name=name, here="", built=False, problem=error.message))
            continue
        here = fit.of_image(spec, default.build, machine)
        found.append(ImageFacts(name=name, here=here, built=client is not None and _is_built(client, name)))
    return tuple(found)


def _is_built(client: "DockerClient", name: str) -> bool:
    from accelkit.host.engine import client as engine

    with suppress(KitError), engine.engine_errors("looking for images"):
        engine.find_image(client, name)
        return True
    return False


def _drift(config: Config | None, cwd: Path) -> tuple[str, str]:
    """What of the lock does not fit, and what mends it."""
    from accelkit.host.image import locking

    if config is None or not (cwd / "kit.lock").exists():
        return "", ""
    try:
        locking.check(locking.images_of(cwd, [], ""), config.build, cwd)
    except EngineUnavailable:
        return "", ""
    except KitError as error:
        return error.message, error.hint or "kit lock renews it"
    return "", ""


def _torch() -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch")
    except PackageNotFoundError:
        return None
