"""What a script says about sharding, in the words of this API family, and what that comes to."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from accelkit.runtime.errors import SettingError
from accelkit.runtime.settings import KwargsHandler

WRAP_POLICIES: Final = ("transformer_based_wrap", "size_based_wrap", "name_based_wrap", "no_wrap")
STATE_DICT_TYPES: Final = ("SHARDED_STATE_DICT", "FULL_STATE_DICT")
STRATEGIES: Final = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
"""Names of the first version, by the number that torch gives them less one."""
PREFETCHES: Final = ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH")
_DTYPES: Final = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.bfloat16,
    "fp32": torch.float32,
    "no": None,
}
_OBSOLETE: Final = ("use_orig_params", "sync_module_states", "limit_all_gathers")


@dataclass
class FullyShardedDataParallelPlugin(KwargsHandler):
    """How models, gradients and optimizers are sharded. Torch's `fully_shard` does it, whatever `fsdp_version` says.

    None leaves a field to the launch, and then to the default named beside it. Fields of the first version are understood where they
    mean something here. Raises SettingError (a ValueError) for values that are none.
    """

    fsdp_version: int | None = None
    """2 (default); 1 is accepted for scripts that say it."""
    sharding_strategy: Any = None
    """The first version's word for `reshard_after_forward`: FULL_SHARD (True) or SHARD_GRAD_OP (False), a number, or torch's enum."""
    reshard_after_forward: Any = None
    """True (default): parameters are given up after each forward and gathered again for backward; False: they stay until then."""
    backward_prefetch: Any = None
    """BACKWARD_PRE (default): the next parameters are gathered during a backward; NO_PREFETCH: one at a time."""
    mixed_precision_policy: Any = None
    """None: by the precision of the Accelerator; "bf16", "fp16" or "fp32"; a dict of `param_dtype`, `reduce_dtype`, `output_dtype`; torch's
    policy."""
    auto_wrap_policy: Any = None
    """One of WRAP_POLICIES (default: no_wrap, or the one whose field below is given), or `policy(module) -> bool`."""
    cpu_offload: Any = None
    """True: parameters, gradients and optimizer states live on the CPU between uses; torch's CPUOffloadPolicy. Default: False."""
    ignored_modules: Any = None
    """Modules, or an expression that matches their whole names: kept whole on every rank and not synchronised."""
    state_dict_type: Any = None
    """SHARDED_STATE_DICT (default): each rank saves its part; FULL_STATE_DICT: rank 0 saves the whole."""
    state_dict_config: Any = None
    optim_state_dict_config: Any = None
    limit_all_gathers: bool = True
    use_orig_params: bool | None = None
    param_init_fn: Callable[[nn.Module], None] | None = None
    """Gives the modules of a model that is on the meta device on every rank their values; called on each that has some of its own."""
    sync_module_states: bool | None = None
    forward_prefetch: bool | None = None
    """True: the next parameters are gathered during a forward. Default: False."""
    activation_checkpointing: bool | None = None
    """True: wrapped modules compute their forward again in backward instead of keeping what it made. Default: False."""
    cpu_ram_efficient_loading: bool | None = None
    """Accepted: a model that is on the meta device on all ranks but the first is filled by that one in any case."""
    transformer_cls_names_to_wrap: list[str] | str | None = None
    """Names of classes; default: the model's own `_no_split_modules`."""
    min_num_params: int | None = None
    """For size_based_wrap: modules with as many parameters, that are in no smaller module which is wrapped."""
    module_names_to_wrap: list[str] | str | None = None
    """For name_based_wrap: names, with `*` for any part, such as `layers.*`."""

    def __post_init__(self) -> None:
        """Bring values into one form; refuse those that are none."""
        if self.fsdp_version not in (None, 1, 2):
            raise SettingError(f"fsdp_version={self.fsdp_version!r}: must be 1 or 2")
        self.sharding_strategy = _named("sharding_strategy", self.sharding_strategy, STRATEGIES)
        self.backward_prefetch = _named("backward_prefetch", self.backward_prefetch, PREFETCHES)
        self.set_state_dict_type(self.state_dict_type)
        if isinstance(self.auto_wrap_policy, str):
            self.auto_wrap_policy = _named("auto_wrap_policy", self.auto_wrap_policy.lower(), WRAP_POLICIES)
        elif self.auto_wrap_policy is not None and not callable(self.auto_wrap_policy):
            raise SettingError(
                f"auto_wrap_policy={self.auto_wrap_policy!r}: must be one of {', '.join(WRAP_POLICIES)} or callable"
            )
        self.reshard_after_forward = _reshard(self.reshard_after_forward, self.sharding_strategy)
        if self.min_num_params is not None and (
            isinstance(self.min_num_params, bool) or not _is_count(self.min_num_params)
        ):
            raise SettingError(f"min_num_params={self.min_num_params!r}: must be a whole number from 0")
        self.validate_cpu_offload()
        self.validate_mixed_precision_policy()
        self.transformer_cls_names_to_wrap = _listed(self.transformer_cls_names_to_wrap)
        self.module_names_to_wrap = _listed(self.module_names_to_wrap)

    def strategy(self) -> str:
        """The one that shards."""
        return "fsdp"

    def set_state_dict_type(self, state_dict_type: Any = None) -> None:
        """Set how checkpoints are saved. Raises SettingError for LOCAL_STATE_DICT, which `fully_shard` does not have."""
        self.state_dict_type = _named("state_dict_type", state_dict_type, STATE_DICT_TYPES)

    def set_mixed_precision(self, mixed_precision: str, buffer_autocast: bool = False, override: bool = False) -> None:
        """Compute in that precision unless a policy was given; `override` replaces it. Raises SettingError for an unknown name."""
        if mixed_precision not in _DTYPES:
            raise SettingError(f"mixed_precision={mixed_precision!r}: must be one of {', '.join(_DTYPES)}")
        if self.mixed_precision_policy is None or override:
            self.mixed_precision_policy = mixed_precision

    def validate_mixed_precision_policy(self) -> None:
        """Refuse what is no policy."""
        policy = self.mixed_precision_policy
        if isinstance(policy, str) and policy not in _DTYPES:
            raise SettingError(f"mixed_precision_policy={policy!r}: must be one of {', '.join(_DTYPES)}")
        if isinstance(policy, Mapping) and set(policy) - {
            "param_dtype",
            "reduce_dtype",
            "output_dtype",
            "cast_forward_inputs",
        }:
            raise SettingError(
                f"mixed_precision_policy={dict(policy)}: keys are param_dtype, reduce_dtype, output_dtype, cast_forward_inputs"
            )
        if not (policy is None or isinstance(policy, (str, Mapping)) or hasattr(policy, "param_dtype")):
            raise SettingError(f"mixed_precision_policy={policy!r}: must be a name, a dict or a MixedPrecisionPolicy")

    def validate_cpu_offload(self) -> None:
        """Refuse what is no way to offload."""
        offload = self.cpu_offload
        if not (
            offload is None
            or isinstance(offload, bool)
            or type(offload).__name__ in ("CPUOffloadPolicy", "OffloadPolicy")
        ):
            raise SettingError(f"cpu_offload={offload!r}: must be True, False or a CPUOffloadPolicy")

    def set_cpu_offload(self) -> None:
        """Nothing is left to do: the policy is made when models are prepared."""

    def set_auto_wrap_policy(self, model: nn.Module) -> None:
        """Check that the policy finds modules in a model. Raises SettingError where it names classes that the model does not have."""
        from accelkit.runtime.strategies import wrap_policy

        wrap_policy.choose(model, self)

    def warn_of_obsolete(self) -> None:
        """One warning that names the fields that mean nothing to `fully_shard`."""
        default = FullyShardedDataParallelPlugin()
        given = [name for name in _OBSOLETE if getattr(self, name) != getattr(default, name)]
        if given:
            warnings.warn(f"{', '.join(given)}: no effect, fully_shard does always what they ask for", stacklevel=4)


def merged(
    plugin: FullyShardedDataParallelPlugin | None, launched: Mapping[str, Any]
) -> FullyShardedDataParallelPlugin:
    """The script's plug-in, and the launch's word where it leaves a field open."""
    made = plugin or FullyShardedDataParallelPlugin()
    given = {name: value for name, value in launched.items() if getattr(made, name, None) is None}
    fields = {name: getattr(made, name) for name in made.__dataclass_fields__}
    return FullyShardedDataParallelPlugin(**{**fields, **given})


def dtypes(policy: Any, computed: torch.dtype | None) -> dict[str, Any]:
    """Arguments of torch's MixedPrecisionPolicy. `computed`: what the Accelerator's precision computes in; None: in full.

    Gradients are summed in float32 unless a policy says otherwise; the model's forward hook gives its outputs in float32.
    """
    if policy is None or isinstance(policy, str):
        dtype = computed if policy is None else _DTYPES[policy]
        return {} if dtype is None else {"param_dtype": dtype, "reduce_dtype": torch.float32}
    if isinstance(policy, Mapping):
        return {name: _dtype(value) for name, value in policy.items()}
    names = ("param_dtype", "reduce_dtype", "output_dtype", "cast_forward_inputs")
    return {name: getattr(policy, name) for name in names if hasattr(policy, name)}


def _dtype(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return _DTYPES[value] if value in _DTYPES else getattr(torch, value.removeprefix("torch."))


def _named(field: str, value: Any, allowed: tuple[str, ...]) -> Any:
    """A value of an enumeration by its name: from a text in any case, a number from 1, or torch's own enumeration."""
    if value is None or callable(value):
        return value
    text = getattr(value, "name", str(value))
    if text.isdigit() and 1 <= int(text) <= len(allowed):
        return allowed[int(text) - 1]
    found = {name.upper(): name for name in allowed}.get(text.upper())
    if found is None:
        raise SettingError(f"{field}={value!r}: must be one of {', '.join(allowed)}")
    return found


def _reshard(value: Any, strategy: str | None) -> bool | None:
    """Whether parameters are given up after forward; the first version's names say it, too."""
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if value is not None and not isinstance(value, bool):
        strategy, value = _named("reshard_after_forward", value, STRATEGIES), None
    if strategy in ("NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"):
        other = (
            "strategy='ddp'"
            if strategy == "NO_SHARD"
            else "ParallelismConfig(dp_replicate_size=..., dp_shard_size=...)"
        )
        raise SettingError(f"sharding_strategy={strategy}: said in another way here", hint=f"use {other}")
    if value is None and strategy is not None:
        return strategy == "FULL_SHARD"
    result: bool | None = value
    return result


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 0


def _listed(value: Iterable[str] | str | None) -> list[str] | None:
    if value is None:
        return None
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else list(value)
