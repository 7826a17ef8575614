"""Reading the default_config.yaml of Accelerate: what has a counterpart is carried over, everything else is named."""

from pathlib import Path
from typing import Any, Final

import yaml

from accelkit.contract.data import data
from accelkit.host.config import foreign_sharding
from accelkit.host.errors import UsageError

_NOTHING: Final[tuple[object, ...]] = (None, False, "", "no", "NO", "main", "LOCAL_MACHINE", {}, [], "static", 0)
_REASONS = {
    "fsdp_config": "distributed_type is not FSDP, so it had no effect",
    "deepspeed_config": "distributed_type is not DEEPSPEED, so it had no effect",
    "megatron_lm_config": "Megatron-LM is not a strategy of this version",
    "main_process_ip": "kit finds the address of node 0 itself",
    "rdzv_backend": "kit gives every rank its place; nothing is negotiated",
    "mpirun_config": "kit starts the ranks itself",
    "dynamo_config": "compile in the script: torch.compile(model)",
    "tpu_name": "TPUs are not an image of this version",
}


@data
class Imported:
    """The settings, and a line for everything that could not be carried over."""

    values: dict[str, object]
    left: list[str]


def read(path: Path) -> Imported:
    """Read a YAML or JSON file. Raises UsageError when it is not there or not such a file."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8, or a date that is none
        raise UsageError(f"{path}: not YAML: {error}") from error
    if not isinstance(data, dict) or "distributed_type" not in data:
        raise UsageError(f"{path}: not a config of Accelerate: it has no distributed_type")
    for key in ("num_machines", "num_processes"):
        if type(data.get(key, 1)) is not int and data[key] is not None:
            raise UsageError(f"{path}: {key} is {data[key]!r}; allowed is a whole number")
    return _translate(data)


def _translate(data: dict[str, Any]) -> Imported:
    values: dict[str, object] = {"run.on": "local"}
    machines = max(1, data.get("num_machines") or 1)
    total = data.get("num_processes") or 0
    left = []
    values["run.nodes"] = 1
    if total > 0:
        values["run.procs_per_node"] = max(1, total // machines)
        if total % machines:
            left.append(f"num_processes: {total} ranks are not the same number on each of {machines} machines")
    if machines > 1:
        left.append(f"num_machines: {machines} machines; this version starts ranks on one, with those of one machine")
    if data.get("mixed_precision"):
        values["run.precision"] = str(data["mixed_precision"])
    if data.get("main_process_port"):
        values["run.port"] = data["main_process_port"]
    values |= _gpus(data)
    sharding, without = foreign_sharding.translate(data)
    values |= sharding
    left += without
    done = {
        "num_machines",
        "num_processes",
        "mixed_precision",
        "main_process_port",
        "gpu_ids",
        "use_cpu",
        "distributed_type",
        "parallelism_config",
        *(f"{kind.lower()}_config" for kind in ("FSDP", "DEEPSPEED") if data["distributed_type"] == kind),
    }
    if str(data["distributed_type"]) not in ("NO", "MULTI_CPU", "MULTI_GPU", "FSDP", "DEEPSPEED"):
        left.append(f"distributed_type: {data['distributed_type']} is not a strategy of this version")
    unknown = [key for key in sorted(set(data) - done) if data[key] not in _NOTHING]
    left += [f"{key}: {_REASONS.get(key, 'has no counterpart')}" for key in unknown]
    return Imported(values=values, left=left)


def _gpus(data: dict[str, Any]) -> dict[str, object]:
    if data.get("use_cpu"):
        return {"run.gpus": "none"}
    ids = data.get("gpu_ids")
    if ids in (None, "all", ""):
        return {}
    text = str(ids)
    return {"run.gpus": text if "," in text else f"{text},"}
