"""What a node finds out about itself before its ranks start: cores, memory, network interface; and the ranks' environment from it."""

import errno
import fcntl
import os
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Final

from accelkit.contract import names
from accelkit.contract.spec import LaunchSpec

_SIOCGIFADDR: Final = 0x8915
_CGROUP = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")
_RETRY: Final = 0.5
_SAY_EVERY: Final = 10.0


class JoinError(RuntimeError):
    """Node 0 cannot be reached by name."""


def cores() -> int:
    """Cores this node may use: the least of affinity, CFS quota and Slurm's cpus-per-task, at least 1."""
    counts = [float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)]
    quota = _cfs_quota()
    if quota is not None:
        counts.append(quota)
    slurm = os.environ.get("SLURM_CPUS_PER_TASK", "")
    if slurm.isdigit():
        counts.append(float(slurm))
    return max(1, int(min(counts)))


def threads_of(spec: LaunchSpec, usable: int) -> int:
    """Threads a rank: what the spec fixes, else cores divided by all ranks on the machine, at least 1."""
    return spec.threads or max(1, usable // spec.ranks_on_machine)


def memory_limit() -> int | None:
    """Bytes that this node's cgroup may use, or one above it; None without a limit."""
    files = [*(folder / "memory.max" for folder in _cgroups("")),
             *(folder / "memory.limit_in_bytes" for folder in _cgroups("memory"))]  # fmt: skip
    limits = [int(text) for text in map(_read, files) if text.isdigit()]
    return min((limit for limit in limits if limit < 1 << 60), default=None)


def oom_kills() -> int:
    """How many processes of this cgroup, and of those below it, the kernel has killed for memory so far; 0 where it does not tell."""
    for file in (*(f / "memory.events" for f in _cgroups("")), *(f / "memory.oom_control" for f in _cgroups("memory"))):
        for line in _read(file).splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _cgroups(controller: str) -> list[Path]:
    """Folders of our cgroup and of all above it, ours first. `controller`: of the old kind ("memory"); "" is the one tree of the new kind.

    In a container the path may be the host's, of which nothing is seen but our own cgroup at the top.
    """
    for line in _read(_OWN_CGROUPS).splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            top = _CGROUP / controllers if (_CGROUP / controllers).is_dir() else _CGROUP / controller
            own = top / path.lstrip("/")
            return [folder for folder in (own, *own.parents) if folder.is_relative_to(top) and folder.is_dir()]
    return []


def shm_size() -> int | None:
    """Bytes of /dev/shm; None where there is none."""
    try:
        found = os.statvfs("/dev/shm")  # noqa: S108
    except OSError:
        return None
    return found.f_frsize * found.f_blocks


def route_to(host: str, port: int, timeout: float) -> tuple[str | None, str]:
    """The interface and local address that lead to `host`, as the kernel routes a datagram (nothing is sent).

    The name is looked up until `timeout` seconds have passed, saying so now and then. Raises JoinError.
    """
    deadline, said = time.monotonic() + timeout, time.monotonic()
    while True:
        try:
            address = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_DGRAM)[0][4]
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect(address)
                local = probe.getsockname()[0]
            _check_reachable(host, str(address[0]), local)
            return _interface_of(local), local
        except OSError as error:
            if time.monotonic() > deadline:
                raise JoinError(f"cannot reach {host} within {timeout:g} s: {error}") from error
        if time.monotonic() - said > _SAY_EVERY:
            said = time.monotonic()
            sys.stderr.write(f"waiting for {host}\n")
            sys.stderr.flush()
        time.sleep(_RETRY)


def _check_reachable(host: str, address: str, local: str) -> None:
    """Raise JoinError when `host` is a name for this machine alone, or the way to it does not leave the link."""
    for found in (address, local):
        if found.startswith("169.254.") or (
            found.startswith("127.") and not host.startswith("127.") and host != "localhost"
        ):
            raise JoinError(
                f"{host} is {address} here, reached from {local}: an address that other nodes cannot use. "
                f"Give {host} a routable IPv4 address in /etc/hosts or DNS"
            )


def _interface_of(address: str) -> str | None:
    """Name of the interface that has `address`; None when none says so."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(asked.fileno(), _SIOCGIFADDR, request)
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.ENODEV):
                    raise
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def rank_environment(
    spec: LaunchSpec, node: int, local_rank: int, threads: int, interface: str | None
) -> dict[str, str]:
    """The whole environment of a rank: ours, the limits of thread pools, the user's variables, then rank and rendezvous."""
    env = {n: v for n, v in os.environ.items() if not n.startswith(("TORCHELASTIC_", "PET_", "ROLE_"))}
    for name in (
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "NUMEXPR_NUM_THREADS",
        "RAYON_NUM_THREADS",
    ):
        env[name] = str(threads)
    env.setdefault("TOKENIZERS_PARALLELISM", "false")
    env["PYTHONUNBUFFERED"] = "1"
    if spec.settings.deterministic:
        env["PYTHONHASHSEED"] = str(spec.settings.seed or 0)
        env["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    if spec.image_digest:  # an interface that an image brought; the user's own comes with spec.env
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
            env.pop(name, None)
    if spec.nodes > 1 and interface:
        env |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}", "TP_SOCKET_IFNAME": interface}
    return env | spec.env | _kit_variables(spec, node) | _rank_variables(spec, node, local_rank)


def _kit_variables(spec: LaunchSpec, node: int) -> dict[str, str]:
    exchange = Path(spec.exchange_dir)
    found = {
        names.ENV_SPEC: str(exchange / names.SPEC_FILE),
        names.ENV_RUN_ID: spec.run_id,
        names.ENV_NODE_NAME: names.node_name(node),
        names.ENV_OUTPUT_DIR: spec.output_dir,
        names.ENV_METRICS_FILE: str(exchange / names.METRICS_FILE),
    }
    if spec.secrets_dir:
        found[names.ENV_SECRETS_DIR] = spec.secrets_dir
    if spec.image_digest:
        found[names.ENV_IMAGE_DIGEST] = spec.image_digest
    return found


def _rank_variables(spec: LaunchSpec, node: int, local_rank: int) -> dict[str, str]:
    return {
        "RANK": str(node * spec.procs_per_node + local_rank),
        "WORLD_SIZE": str(spec.world_size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(spec.procs_per_node),
        "GROUP_RANK": str(node),
        "GROUP_WORLD_SIZE": str(spec.nodes),
        "MASTER_ADDR": spec.master_addr,
        "MASTER_PORT": str(spec.master_port),
    }


def _cfs_quota() -> float | None:
    """CPUs that the CFS quota allows our cgroup, or one above it; None without one."""
    texts = [_read(folder / "cpu.max").split() for folder in _cgroups("")]
    texts += [[_read(folder / f"cpu.cfs_{part}_us") for part in ("quota", "period")] for folder in _cgroups("cpu")]
    return min(
        (int(t[0]) / int(t[1]) for t in texts if len(t) == 2 and t[0].isdigit() and t[1].isdigit()), default=None
    )


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
