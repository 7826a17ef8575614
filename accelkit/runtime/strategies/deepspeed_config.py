"""DeepSpeed's config: where each "auto" gets its value, and where what is said twice must agree."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from accelkit.runtime.errors import SettingError
from accelkit.runtime.strategies.deepspeed_plugin import DeepSpeedPlugin, HfDeepSpeedConfig

_ZERO: Final = "zero_optimization"
_LATER: Final = object()
"""A key that is left to DeepSpeed's own default: it is taken out."""


@dataclass(frozen=True)
class Facts:
    """What the run knows."""

    size: int
    """Ranks that share the data."""
    precision: str
    """no, bf16 or fp16."""
    steps: int
    """Micro-batches per step."""
    batches: tuple[int, ...] = ()
    """Batch sizes of prepared loaders."""
    hidden: int | None = None
    """Width of the model, where its config says it."""
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the optimizer that the config's own stands for."""
    scheduler: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the schedule that the config's own stands for."""


def resolve(plugin: DeepSpeedPlugin, facts: Facts) -> dict[str, Any]:
    """The config with a value for every "auto"; `plugin.resolved` tells which.

    Raises SettingError that lists every contradiction, and every "auto" for which there is no value.
    """
    config = _given_or_made(plugin)
    reader = HfDeepSpeedConfig(config)
    steps, batch = _counts(reader, plugin, facts)
    wanted = _values(plugin, facts, steps, batch)
    said = _said(plugin, facts)
    problems = [
        f"{key} is {found!r} in DeepSpeed's config, and {said[key][0]!r} by {said[key][1]}"
        for key in said
        if (found := reader.get_value(key)) not in (None, "auto") and found != said[key][0]
    ]
    problems += _wrong_counts(reader, facts, steps, batch)
    plugin.resolved = {}
    for key in list(_autos(config)):
        if key in wanted:
            _fill(reader, key, wanted[key], plugin.resolved)
        else:
            problems.append(f'{key} is "auto", and nothing says what it is')
    if problems:
        raise SettingError(
            "\n  ".join(["DeepSpeed's config and the run do not agree:", *problems]),
            hint='change one of the two, or write "auto" into the config',
        )
    _complete(config, wanted)
    plugin.resolved_config = config
    return config


def before_models(plugin: DeepSpeedPlugin, size: int, precision: str) -> dict[str, Any]:
    """As much of the config as building a model needs and is known by then; no value is "auto"."""
    config = _given_or_made(plugin)
    for name in ("optimizer", "scheduler", "train_batch_size"):
        config.pop(name, None)
    reader = HfDeepSpeedConfig(config)
    wanted = _values(plugin, Facts(size=size, precision=precision, steps=1), steps=1, batch=1)
    for key in list(_autos(config)):
        _fill(reader, key, wanted.get(key, _LATER), {})
    _complete(config, wanted)
    return config


def _given_or_made(plugin: DeepSpeedPlugin) -> dict[str, Any]:
    if plugin.given_config is None:
        return _made_of_fields(plugin)
    config = copy.deepcopy(plugin.given_config)
    if _ZERO not in config:
        raise SettingError(
            f"DeepSpeed's config has no {_ZERO}", hint='give it one, such as {"stage": 2}; without it ddp does the same'
        )
    return config


def _made_of_fields(plugin: DeepSpeedPlugin) -> dict[str, Any]:
    """A config for a plug-in that was given none."""
    zero: dict[str, Any] = {"stage": 2 if plugin.zero_stage is None else plugin.zero_stage}
    for name in ("offload_optimizer", "offload_param"):
        device, path = getattr(plugin, f"{name}_device"), getattr(plugin, f"{name}_nvme_path")
        if device not in (None, "none"):
            zero[name] = {"device": device, **({"nvme_path": path} if path else {})}
    if zero["stage"] == 3:
        zero["stage3_gather_16bit_weights_on_model_save"] = "auto"
        for key in ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"):
            zero[key] = "auto"
    autos = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
    return {**dict.fromkeys(autos, "auto"), _ZERO: zero}


def _counts(reader: HfDeepSpeedConfig, plugin: DeepSpeedPlugin, facts: Facts) -> tuple[int, int]:
    """Micro-batches per step and samples per micro-batch, each from the config where that says it."""
    found = reader.get_value("gradient_accumulation_steps")
    said = plugin.gradient_accumulation_steps
    own = facts.steps if facts.steps > 1 or not isinstance(said, int) else said
    steps = found if isinstance(found, int) else own
    batch = reader.get_value("train_micro_batch_size_per_gpu")
    if not isinstance(batch, int):
        batch = (min if plugin.is_train_batch_min else max)(facts.batches, default=1)
    return steps, batch


def _values(plugin: DeepSpeedPlugin, facts: Facts, steps: int, batch: int) -> dict[str, Any]:
    """The value of every key that may be "auto"."""
    hidden = facts.hidden
    values = {
        "gradient_accumulation_steps": steps,
        "train_micro_batch_size_per_gpu": batch,
        "train_batch_size": steps * batch * facts.size,
        "gradient_clipping": plugin.gradient_clipping or 0.0,
        "bf16.enabled": facts.precision == "bf16",
        "fp16.enabled": facts.precision == "fp16",
        f"{_ZERO}.stage": 2 if plugin.zero_stage is None else plugin.zero_stage,
        f"{_ZERO}.stage3_gather_16bit_weights_on_model_save": bool(plugin.zero3_save_16bit_model),
        f"{_ZERO}.reduce_bucket_size": _LATER if hidden is None else hidden * hidden,
        f"{_ZERO}.stage3_prefetch_bucket_size": _LATER if hidden is None else int(0.9 * hidden * hidden),
        f"{_ZERO}.stage3_param_persistence_threshold": _LATER if hidden is None else 10 * hidden,
    }
    for name in ("offload_optimizer", "offload_param"):
        values[f"{_ZERO}.{name}.device"] = getattr(plugin, f"{name}_device") or "none"
        values[f"{_ZERO}.{name}.nvme_path"] = getattr(plugin, f"{name}_nvme_path") or _LATER
    values |= {f"optimizer.params.{name}": value for name, value in facts.optimizer.items()}
    return values | {f"scheduler.params.{name}": value for name, value in facts.scheduler.items()}


def _said(plugin: DeepSpeedPlugin, facts: Facts) -> dict[str, tuple[Any, str]]:
    """What the config must not contradict, and who says it."""
    said = {
        "gradient_clipping": (plugin.gradient_clipping, "the plug-in's gradient_clipping"),
        "gradient_accumulation_steps": (
            plugin.gradient_accumulation_steps,
            "the plug-in's gradient_accumulation_steps",
        ),
        f"{_ZERO}.stage": (plugin.zero_stage, "the plug-in's zero_stage"),
    }
    if facts.steps > 1:
        said["gradient_accumulation_steps"] = (facts.steps, "the Accelerator's gradient_accumulation_steps")
    for name in ("offload_optimizer", "offload_param"):
        for key in ("device", "nvme_path"):
            said[f"{_ZERO}.{name}.{key}"] = (getattr(plugin, f"{name}_{key}"), f"the plug-in's {name}_{key}")
    for name in ("bf16", "fp16"):
        said[f"{name}.enabled"] = (facts.precision == name, f"mixed_precision={facts.precision!r}")
    return {key: value for key, value in said.items() if value[0] is not None}


def _wrong_counts(reader: HfDeepSpeedConfig, facts: Facts, steps: int, batch: int) -> list[str]:
    problems = []
    total = reader.get_value("train_batch_size")
    if isinstance(total, int) and total != steps * batch * facts.size:
        problems.append(
            f"train_batch_size is {total}, and {batch} samples x {steps} micro-batches x {facts.size} ranks are "
            f"{steps * batch * facts.size}"
        )
    if facts.batches and batch not in facts.batches:
        found = ", ".join(map(str, sorted(set(facts.batches))))
        problems.append(f"train_micro_batch_size_per_gpu is {batch}, and prepared loaders give {found}")
    return problems


def _autos(config: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _autos(value, f"{above}{name}.")
        elif value == "auto":
            yield f"{above}{name}"


def _fill(reader: HfDeepSpeedConfig, key: str, value: Any, shown: dict[str, Any]) -> None:
    node, last = reader.find_config_node(key)
    assert node is not None
    if value is _LATER:
        del node[last]
        shown[key] = "DeepSpeed's default"
    else:
        node[last] = shown[key] = value


def _complete(config: dict[str, Any], wanted: Mapping[str, Any]) -> None:
    """What a config that leaves it out would get wrong here."""
    for name in ("bf16", "fp16"):
        if wanted[f"{name}.enabled"]:
            config.setdefault(name, {}).setdefault("enabled", True)
    config.setdefault("train_micro_batch_size_per_gpu", wanted["train_micro_batch_size_per_gpu"])
    config.setdefault("gradient_accumulation_steps", wanted["gradient_accumulation_steps"])
    config.setdefault("zero_allow_untested_optimizer", True)
    config.setdefault("zero_force_ds_cpu_optimizer", False)
    config["steps_per_print"] = 2**63 - 1  # the script says what it prints
