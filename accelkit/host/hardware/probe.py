"""Reading the machine: CPU, memory, GPUs, TPU. Files only, but for `nvidia-smi` where there is one."""

import os
import platform
import socket
from pathlib import Path
from typing import Final

from accelkit.contract.data import data
from accelkit.host import process
from accelkit.host.errors import KitError

_QUERY: Final = "index,uuid,name,memory.total,driver_version,compute_cap"
_PATIENCE: Final = 10.0


@data
class GpuInfo:
    """An NVIDIA GPU."""

    index: int
    uuid: str
    name: str
    memory: int
    """Bytes."""
    driver: str
    capability: str = ""
    """Compute capability, for example 9.0; empty where the driver does not tell."""


@data
class Hardware:
    """A machine."""

    hostname: str
    system: str
    kernel: str
    machine: str
    cpu: str
    cores: int
    """Usable: of this process's affinity."""
    memory: int
    """Bytes."""
    gpus: tuple[GpuInfo, ...] = ()
    tpu: bool = False


def probe() -> Hardware:
    """What this machine has."""
    names = platform.uname()
    return Hardware(
        hostname=socket.gethostname(),
        system=names.system,
        kernel=names.release,
        machine=names.machine,
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory=_memory(),
        gpus=_gpus(),
        tpu=any(Path("/dev").glob("accel[0-9]*")),
    )


def _cpu_model() -> str:
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"


def _memory() -> int:
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemTotal"):
            return int(line.split()[1]) * 1024
    return 0


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _gpus() -> tuple[GpuInfo, ...]:
    """What nvidia-smi lists; nothing where it is not there or does not answer."""
    if process.find("nvidia-smi") is None:
        return ()
    try:
        done = process.run(["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"], timeout=_PATIENCE)
    except KitError:
        return ()
    if done.code != 0:  # drivers before 470 know no compute_cap
        done = process.run(
            ["nvidia-smi", f"--query-gpu={_QUERY.rpartition(',')[0]}", "--format=csv,noheader,nounits"],
            timeout=_PATIENCE,
        )
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()] if done.code == 0 else []
    return tuple(
        GpuInfo(
            index=int(row[0]),
            uuid=row[1],
            name=row[2],
            memory=int(row[3]) << 20,
            driver=row[4],
            capability=row[5] if len(row) > 5 else "",
        )
        for row in rows
        if len(row) in (5, 6) and row[3].isdigit()
    )
