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
_DEEPSPEED_DONE: Final = (
    "zero_stage",
    "gradient_accumulation_steps",
    "offload_param_device",
    "offload_optimizer_device",
)
_DEEPSPEED_NOTHING: Final = (None, False, "none", "", "standard")

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
    """ZeRO's stages as fully_shard: 3 gives parameters up after forward, 1 and 2 keep them until backward."""
    stage = block.get("zero_stage", 2)
    if block.get("deepspeed_config_file"):
        return {}, [
            f"deepspeed_config.deepspeed_config_file: {block['deepspeed_config_file']} is not read; say its stage as --strategy fsdp"
        ]
    if str(stage) == "0":
        return {"run.strategy": "ddp"}, []
    values: dict[str, object] = {"run.strategy": "fsdp", "run.fsdp_reshard_after_forward": str(stage) == "3"}
    left = []
    steps = block.get("gradient_accumulation_steps")
    if isinstance(steps, int) and steps > 1:
        values["run.grad_accum_steps"] = steps
    for name in ("offload_param_device", "offload_optimizer_device"):
        if block.get(name) == "cpu":
            values["run.fsdp_cpu_offload"] = True
        elif block.get(name) == "nvme":
            left.append(f"deepspeed_config.{name}: nvme has no counterpart; cpu has: --fsdp-cpu-offload")
    if block.get("gradient_clipping") not in _DEEPSPEED_NOTHING:
        left.append("deepspeed_config.gradient_clipping: call accelerator.clip_grad_norm_ in the script")
    rest = [
        name
        for name in block
        if name not in (*_DEEPSPEED_DONE, "gradient_clipping") and block[name] not in _DEEPSPEED_NOTHING
    ]
    named = {"zero3_init_flag": "build the model in init_empty_weights(), and load it with load_checkpoint_in_model",
             "zero3_save_16bit_model": "save_model always saves the whole model"}  # fmt: skip
    left += [f"deepspeed_config.{name}: {named.get(name, 'has no counterpart')}" for name in rest]
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
