"""The engine through its SDK: connecting, finding images, and everything that carries a run's label."""

import difflib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import docker
from docker.errors import APIError, DockerException, NotFound
from docker.tls import TLSConfig

from accelkit.contract import names
from accelkit.host import paths
from accelkit.host.engine import command, images
from accelkit.host.errors import EngineError, EngineUnavailable, ImageNotFound
from accelkit.host.launch.plan import ImagePlan

if TYPE_CHECKING:
    from docker.models.containers import Container
    from docker.models.networks import Network
    from docker.models.volumes import Volume

TIMEOUT: Final = 30
"""Seconds for one answer of the engine."""
_SOCKET: Final = "/var/run/docker.sock"
"""Where an engine is that nothing says otherwise of."""


def connect(timeout: int = TIMEOUT) -> docker.DockerClient:
    """A client of the engine that the docker command would use (DOCKER_HOST, else its current context), with TLS where that says so.

    Raises EngineUnavailable.
    """
    host = os.environ.get("DOCKER_HOST")
    try:
        context = {} if host else _context()
        host = host or context.get("base_url")
        client = docker.DockerClient(**context, timeout=timeout) if context else docker.from_env(timeout=timeout)
        client.ping()
    except (DockerException, OSError) as error:
        raise _unavailable(host, error) from error
    return client


def place() -> str:
    """Where the engine is that :func:`connect` asks: a URL, or the path of a socket. Raises EngineUnavailable for an unknown context."""
    return os.environ.get("DOCKER_HOST") or _context().get("base_url") or _SOCKET


def _unavailable(host: str | None, error: BaseException) -> EngineUnavailable:
    where = host or _SOCKET
    text = str(error)
    if "paramiko" in text:
        why, hint = "ssh:// needs the package paramiko", "install it beside kit: pip install 'docker[ssh]'"
    elif "TLS" in text or "certificate" in text or "SSL" in text:
        why, hint = f"TLS: {text}", "DOCKER_CERT_PATH names the folder of ca.pem, cert.pem and key.pem"
    elif "Permission denied" in text or "PermissionError" in text:
        why, hint = "you may not use its socket", "join the group docker; kit run --on local does without it"
    elif "FileNotFoundError" in text or "No such file" in text:
        why, hint = "there is no socket", "start Docker; kit run --on local does without it"
    else:
        why, hint = "it does not answer", "start Docker; kit run --on local does without it"
    return EngineUnavailable(f"no Docker engine at {where}: {why}", hint=hint)


def _context() -> dict[str, Any]:
    """What the SDK is to be told of the docker command's current context; nothing for the default one."""
    folder = command.folder()
    name = os.environ.get("DOCKER_CONTEXT") or command.settings().get("currentContext")
    if not name or name == "default":
        return {}
    for meta in (folder / "contexts" / "meta").glob("*/meta.json"):
        found = command.read_json(meta)
        if found.get("Name") == name:
            endpoint = found.get("Endpoints", {}).get("docker", {})
            files = folder / "contexts" / "tls" / meta.parent.name / "docker"
            verify = not endpoint.get("SkipTLSVerify", False)
            return {"base_url": endpoint.get("Host")} | ({"tls": _tls(files, verify=verify)} if files.is_dir() else {})
    raise EngineUnavailable(f"docker context {name!r} is not there", hint="docker context ls shows which are")


def _tls(files: Path, *, verify: bool) -> TLSConfig:
    """TLS as a context's files say it; each of them may be missing."""
    ca, cert, key = (files / f"{name}.pem" for name in ("ca", "cert", "key"))
    return TLSConfig(
        client_cert=(str(cert), str(key)) if cert.is_file() else None,
        ca_cert=str(ca) if ca.is_file() else None,
        verify=verify,
    )


@contextmanager
def engine_errors(doing: str) -> Iterator[None]:
    """Turn the SDK's errors into EngineError; `doing` says at what, for example "removing the run's network"."""
    try:
        yield
    except APIError as error:
        raise EngineError(f"{doing}: the engine says: {error.explanation or error}") from error
    except (DockerException, OSError) as error:
        raise EngineError(
            f"{doing}: the Docker engine does not answer any more ({type(error).__name__})",
            hint="when it is back, kit runs clean removes what the run left",
        ) from error


def find_image(client: docker.DockerClient, reference: str) -> ImagePlan:
    """The image that `reference` means: a hardware image's name, or a tag, ID or digest. Raises ImageNotFound."""
    for tag in images.tags_of(reference):
        with suppress(NotFound):
            return images.plan_of(reference, tag, client.images.get(tag).attrs)
    raise ImageNotFound(
        f"image {reference!r}: the engine has no such image{_similar(client, reference)}", hint=_build_hint(reference)
    )


def _build_hint(reference: str) -> str:
    ours = sorted(path.parent.name for path in paths.data_folder("images").glob("*/image.yaml"))
    if reference in ours:
        return f"build it: kit build {reference}"
    near = difflib.get_close_matches(reference, ours, n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"{meant}kit build makes {', '.join(ours)}; another one is pulled by: docker pull {reference}"


def _similar(client: docker.DockerClient, reference: str) -> str:
    tags = [tag for image in client.images.list() for tag in image.tags]
    near = difflib.get_close_matches(reference, tags, n=3, cutoff=0.4)
    return f"; it has {', '.join(near)}" if near else ""


def runs_as_root_inside(client: docker.DockerClient) -> bool:
    """Whether the engine is rootless or remaps users, so that root inside is the caller (or nobody) outside."""
    return images.remaps_users(client.info().get("SecurityOptions"))


def _filter(run_id: str | None) -> dict[str, str | list[str] | bool]:
    return {"label": names.LABEL_RUN if run_id is None else f"{names.LABEL_RUN}={run_id}"}


def find_containers(client: docker.DockerClient, run_id: str | None = None) -> "list[Container]":
    """Containers of a run, or of all runs, living or not."""
    return client.containers.list(all=True, filters=_filter(run_id), ignore_removed=True)


def find_networks(client: docker.DockerClient, run_id: str | None = None) -> "list[Network]":
    """Networks of a run, or of all runs."""
    return client.networks.list(filters=_filter(run_id))


def find_volumes(client: docker.DockerClient, run_id: str | None = None) -> "list[Volume]":
    """Volumes of a run, or of all runs."""
    return client.volumes.list(filters=_filter(run_id))


def remove_all(client: docker.DockerClient, run_id: str) -> bool:
    """Remove every container, network and volume of a run; what is gone meanwhile is no error. Containers are killed.

    Returns whether there were any.
    """
    containers, networks = find_containers(client, run_id), find_networks(client, run_id)
    volumes = find_volumes(client, run_id)
    for container in containers:
        with suppress(NotFound):
            _remove(container)
    for network in networks:
        with suppress(NotFound):
            network.remove()
    for volume in volumes:
        with suppress(NotFound):
            volume.remove(force=True)
    return bool(containers or networks or volumes)


def _remove(container: "Container") -> None:
    try:
        container.remove(force=True, v=True)
    except APIError as error:
        if error.status_code != 409:  # 409: its removal is in progress already
            raise
