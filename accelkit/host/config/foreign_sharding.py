"""What Accelerate's blocks about sharding come to: fsdp_config (both versions), deepspeed_config, parallelism_config."""

from collections.abc import Mapping
from typing import Any, Final

from accelkit.host.config.loading import value_of

_RENAMED: Final = {
    "fsdp_transformer_layer_cls_to_wrap": "fsdp_transformer_cls_names_to_wrap",
    "fsdp_offload_params": "fsdp_cpu_offload",
}
_POLICIES: Final = {
    "TRANSFORMER_BASED_WRAP": "transformer_based_wrap",
    "SIZE_BASED_WRAP": "size_based_wrap",
    "NO_WRAP": "no_wrap",
}
_ALWAYS: Final = (
    "fsdp_version", "fsdp_use_orig_params", "fsdp_sync_module_states", "fsdp_cpu_ram_efficient_loading",
    "fsdp_sharding_strategy", "fsdp_reshard_after_forward",
)  # fmt: skip
"""Nothing is lost without these: they are always so here, or read below."""
_SHARDING: Final = {"FULL_SHARD": True, "1": True, "SHARD_GRAD_OP": False, "2": False, "TRUE": True, "FALSE": False}
_DEEPSPEED_NOTHING: Final = (None, False, "none", "", "auto")
_DEEPSPEED_LEFT_OUT: Final = ("gradient_accumulation_steps", "deepspeed_multinode_launcher", "msamp_opt_level")
"""Read apart, about launchers, and about what is off."""

Translated = tuple[dict[str, object], list[str]]
"""Settings by dotted key, and a line for everything that has no counterpart."""


def translate(data: Mapping[str, Any]) -> Translated:
    """The three blocks of a config, as far as its distributed_type uses them."""
    values: dict[str, object] = {}
    left: list[str] = []
    kind = str(data["distributed_type"])
    for name, block in (("FSDP", _fsdp), ("DEEPSPEED", _deepspeed)):
        if kind == name:
            found, rest = block(data.get(f"{name.lower()}_config") or {})
            values |= found
            left += rest
    found, rest = _parallelism(data.get("parallelism_config") or {})
    return values | found, left + rest


def _fsdp(block: Mapping[str, Any]) -> Translated:
    values: dict[str, object] = {"run.strategy": "fsdp"}
    left = []
    word = str(block.get("fsdp_reshard_after_forward", block.get("fsdp_sharding_strategy", "FULL_SHARD"))).upper()
    if word in _SHARDING:
        values["run.fsdp_reshard_after_forward"] = _SHARDING[word]
    elif word in ("NO_SHARD", "3"):
        return {"run.strategy": "ddp"}, [
            "fsdp_config: NO_SHARD is strategy ddp; the block's other keys have no effect on it"
        ]
    else:
        left.append(f"fsdp_config.fsdp_sharding_strategy: {word}: give --dp-replicate-size and --dp-shard-size")
    for name, value in block.items():
        key = _RENAMED.get(name, name)
        if name in _ALWAYS or value in (None, ""):
            continue
        made, problem = value_of(f"run.{key}", _text(key, value)) if _is_known(key) else (None, "has no counterpart")
        if problem is None:
            values[f"run.{key}"] = made
        else:
            left.append(f"fsdp_config.{name}: {problem}")
    return _consistent(values), left


def _is_known(key: str) -> bool:
    from accelkit.contract.options import options
    from accelkit.contract.strategies import StrategyOptions

    return key in options(StrategyOptions)


def _text(key: str, value: Any) -> str:
    text = str(value)
    if key == "fsdp_auto_wrap_policy":
        return _POLICIES.get(text.upper(), text)
    return text.upper() if key in ("fsdp_backward_prefetch", "fsdp_state_dict_type") else text


def _consistent(values: dict[str, object]) -> dict[str, object]:
    """Without what the policy does not look at: such files hold the answers to all questions."""
    looked_at = {
        "transformer_based_wrap": "run.fsdp_transformer_cls_names_to_wrap",
        "size_based_wrap": "run.fsdp_min_num_params",
    }
    policy = values.get("run.fsdp_auto_wrap_policy")
    unused = [key for name, key in looked_at.items() if policy is not None and policy != name]
    return {key: value for key, value in values.items() if (key not in unused and value != 0) or value is False}


def _deepspeed(block: Mapping[str, Any]) -> Translated:
    """Stage 0 is what ddp does; everything else has the same name here."""
    if str(block.get("zero_stage", 2)) == "0" and not block.get("deepspeed_config_file"):
        return {"run.strategy": "ddp"}, []
    values: dict[str, object] = {"run.strategy": "deepspeed"}
    left = []
    steps = block.get("gradient_accumulation_steps")
    if isinstance(steps, int) and steps > 1:
        values["run.grad_accum_steps"] = steps
    for name, value in block.items():
        if value in _DEEPSPEED_NOTHING or name in _DEEPSPEED_LEFT_OUT:
            continue
        key = f"deepspeed_{name.removeprefix('deepspeed_')}"
        made, problem = value_of(f"run.{key}", str(value)) if _is_known(key) else (None, "has no counterpart")
        if problem is None:
            values[f"run.{key}"] = made
        else:
            left.append(f"deepspeed_config.{name}: {problem}")
    return values, left


def _parallelism(block: Mapping[str, Any]) -> Translated:
    values: dict[str, object] = {}
    left = []
    for name, value in block.items():
        key = name.removeprefix("parallelism_config_")
        if key.endswith("_size") and value in (None, 1, "1"):
            continue
        if key in ("dp_replicate_size", "dp_shard_size", "tp_size"):
            values[f"run.{key}"] = int(value)
        elif not key.endswith(("_backend", "_strategy", "_handler")):
            left.append(f"parallelism_config.{name}: has no counterpart")
    if set(values) & {"run.dp_shard_size", "run.tp_size"}:
        values["run.strategy"] = "fsdp"
    return values, left
