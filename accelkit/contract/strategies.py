"""The one table of strategies and their options: flags, variables, the file, its schema and the runtime's plug-ins come from it.

The name of an option is its part's and its name in the plug-in: `fsdp_cpu_offload` is `cpu_offload` of `FullyShardedDataParallelPlugin`.
"""

import typing
from collections.abc import Mapping
from typing import Any, Final, Literal

from accelkit.contract.data import data
from accelkit.contract.options import option, options, variable_of

STRATEGIES: Final[dict[str, str]] = {
    "auto": "ddp for more than one rank, else single; on the XLA device xla",
    "single": "one rank",
    "ddp": "every rank holds the model, gradients are averaged",
    "fsdp": "every rank holds a part of parameters, gradients and optimizer states",
    "xla": "TPUs by torch_xla: a process has all devices it sees, which share each batch; or a process for each",
    "deepspeed": "DeepSpeed's engine does the same as ZeRO, stages 1 to 3; the package must be installed",
}
PARTS: Final[dict[str, tuple[str, ...]]] = {
    "ddp": ("ddp_",),
    "fsdp": ("fsdp_",),
    "xla": ("xla_",),
    "deepspeed": ("deepspeed_",),
    "parallelism": ("dp_replicate_size", "dp_shard_size", "tp_size"),
}
"""Part -> how names of its options begin. A part is what one plug-in takes."""
_TRUE: Final = ("1", "true", "yes", "on")

_DDP: Final = {"strategies": ("ddp",)}
_FSDP: Final = {"strategies": ("fsdp",)}
_XLA: Final = {"strategies": ("xla",)}
_DEEPSPEED: Final = {"strategies": ("deepspeed",)}
WrapPolicy = Literal["transformer_based_wrap", "size_based_wrap", "name_based_wrap", "no_wrap"]


@data
class StrategyOptions:
    """Options of strategies; unset leaves it to the script, and then to the strategy's own default."""

    ddp_find_unused_parameters: bool | None = option(
        None, "ddp: parameters may have no part in the loss; costs a walk over the graph in every step.", **_DDP
    )
    ddp_static_graph: bool | None = option(None, "ddp: every step uses the same parameters in the same order.", **_DDP)
    ddp_gradient_as_bucket_view: bool | None = option(
        None, "ddp: gradients lie where they are exchanged; saves their size in memory.", **_DDP
    )
    ddp_bucket_cap_mb: int | None = option(None, "ddp: MiB of gradients that travel together.", metavar="N", **_DDP)
    ddp_comm_hook: Literal["no", "fp16", "bf16", "power_sgd", "batched_power_sgd"] | None = option(
        None, "ddp: how gradients travel: as they are, in half precision, or compressed.", **_DDP
    )
    fsdp_auto_wrap_policy: WrapPolicy | None = option(
        None,
        "fsdp: which modules are gathered by themselves; unset: by the names or the size below, else none.",
        **_FSDP,
    )
    fsdp_transformer_cls_names_to_wrap: list[str] = option(
        [],
        "fsdp: class of modules to wrap; unset: the model's own _no_split_modules.",
        question="Classes of modules that are gathered by themselves, with commas (empty: none)?",
        needs=("fsdp_auto_wrap_policy", ("transformer_based_wrap",)),
        repeat=True,
        **_FSDP,
    )
    fsdp_module_names_to_wrap: list[str] = option(
        [],
        "fsdp: name of modules to wrap, such as layers.*.",
        needs=("fsdp_auto_wrap_policy", ("name_based_wrap",)),
        repeat=True,
        **_FSDP,
    )
    fsdp_min_num_params: int | None = option(
        None,
        "fsdp: least number of parameters of a module to wrap.",
        needs=("fsdp_auto_wrap_policy", ("size_based_wrap",)),
        metavar="N",
        **_FSDP,
    )
    fsdp_reshard_after_forward: bool | None = option(
        None, "fsdp: give parameters up after forward (the default), or keep them until backward.", **_FSDP
    )
    fsdp_cpu_offload: bool | None = option(
        None,
        "fsdp: keep parameters and moments on the CPU between uses.",
        question="Keep parameters on the CPU between uses: yes or no?",
        reply="no",
        **_FSDP,
    )
    fsdp_activation_checkpointing: bool | None = option(
        None,
        "fsdp: wrapped modules compute their forward again in backward.",
        question="Compute wrapped modules again in backward, to save memory: yes or no?",
        reply="no",
        **_FSDP,
    )
    fsdp_forward_prefetch: bool | None = option(
        None, "fsdp: gather the next module's parameters during a forward.", **_FSDP
    )
    fsdp_backward_prefetch: Literal["BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"] | None = option(
        None, "fsdp: gather the next module's parameters during a backward.", **_FSDP
    )
    fsdp_state_dict_type: Literal["SHARDED_STATE_DICT", "FULL_STATE_DICT"] | None = option(
        None, "fsdp: each rank saves its part (the default), or rank 0 the whole.", **_FSDP
    )
    fsdp_ignored_modules: str | None = option(
        None, "fsdp: expression for names of modules that stay whole on every rank.", metavar="REGEX", **_FSDP
    )
    xla_shard: bool | None = option(
        None,
        "xla: divide parameters, gradients and moments among the devices of a process.",
        question="Divide parameters among the devices of a process: yes or no?",
        reply="no",
        **_XLA,
    )
    deepspeed_config_file: str | None = option(
        None,
        'deepspeed: its own config, a JSON file; values may be "auto".',
        question="DeepSpeed's own config, a JSON file (empty: none)?",
        metavar="FILE",
        **_DEEPSPEED,
    )
    deepspeed_zero_stage: int | None = option(
        None,
        "deepspeed: what ranks divide: 1 optimizer states, 2 (the default) gradients too, 3 parameters too.",
        question="ZeRO stage: 1, 2 or 3?",
        reply="2",
        metavar="N",
        **_DEEPSPEED,
    )
    deepspeed_gradient_clipping: float | None = option(
        None, "deepspeed: norm to which every step clips; unset: the script clips.", metavar="X", **_DEEPSPEED
    )
    deepspeed_offload_optimizer_device: Literal["none", "cpu", "nvme"] | None = option(
        None, "deepspeed: where optimizer states live between steps.", **_DEEPSPEED
    )
    deepspeed_offload_optimizer_nvme_path: str | None = option(
        None, "deepspeed: folder on the disk for optimizer states.", metavar="PATH", **_DEEPSPEED
    )
    deepspeed_offload_param_device: Literal["none", "cpu", "nvme"] | None = option(
        None, "deepspeed: where parameters live between uses, stage 3.", **_DEEPSPEED
    )
    deepspeed_offload_param_nvme_path: str | None = option(
        None, "deepspeed: folder on the disk for parameters.", metavar="PATH", **_DEEPSPEED
    )
    deepspeed_zero3_init_flag: bool | None = option(
        None, "deepspeed: stage 3 divides models while transformers builds them.", **_DEEPSPEED
    )
    deepspeed_zero3_save_16bit_model: bool | None = option(
        None, "deepspeed: what its engine's save_16bit_model may do; save_model gathers in any case.", **_DEEPSPEED
    )
    deepspeed_transformer_moe_cls_names: str | None = option(
        None, "deepspeed: classes that stage 3 gathers as one, with commas.", metavar="NAMES", **_DEEPSPEED
    )
    dp_replicate_size: int | None = option(
        None, "Copies of the (sharded) model.", metavar="N", strategies=("ddp", "fsdp")
    )
    dp_shard_size: int | None = option(None, "Ranks among which a copy is sharded.", metavar="N", **_FSDP)
    tp_size: int | None = option(None, "Ranks that share each layer (tensor parallel).", metavar="N", **_FSDP)


def by_part(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Options that are set, by part and by their names in its plug-in. `values`: field name -> value, other fields included."""
    found: dict[str, dict[str, Any]] = {}
    for name in options(StrategyOptions):
        if values.get(name) not in (None, [], ()):
            part = next(part for part, begins in PARTS.items() if name.startswith(begins))
            found.setdefault(part, {})[name.removeprefix(f"{part}_")] = values[name]
    return found


def from_environment(environ: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The same from KIT_* variables. Raises ValueError that names the variable, for one that is no number where it must be."""
    hints = typing.get_type_hints(StrategyOptions)
    values = {
        name: _value(hints[name], environ[variable_of(name)].strip(), variable_of(name))
        for name in options(StrategyOptions)
        if environ.get(variable_of(name), "").strip()
    }
    return by_part(values)


def _value(kind: Any, text: str, variable: str) -> Any:
    if typing.get_origin(kind) is list:
        return [part.strip() for part in text.split(",") if part.strip()]
    if bool in typing.get_args(kind):
        return text.lower() in _TRUE
    if int in typing.get_args(kind):
        if not text.isdigit():
            raise ValueError(f"{variable}={text!r}: must be a whole number")
        return int(text)
    if float in typing.get_args(kind):
        try:
            return float(text)
        except ValueError:
            raise ValueError(f"{variable}={text!r}: must be a number") from None
    return text
