"""What a script says about DeepSpeed, in the words of this API family; and stand-ins for what DeepSpeed's config describes."""

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import torch
from torch.optim.lr_scheduler import LRScheduler

from accelkit.runtime.errors import SettingError, UnsupportedError
from accelkit.runtime.settings import KwargsHandler

STAGES: Final = (1, 2, 3)
DEVICES: Final = ("none", "cpu", "nvme")


@dataclass
class DeepSpeedPlugin(KwargsHandler):
    """How DeepSpeed's engine trains. None leaves a field to the launch, then to the config, then to the default named beside it.

    Raises SettingError (a ValueError) for values that are none, and for a config that cannot be read.
    """

    hf_ds_config: Any = None
    """DeepSpeed's own config: a path to JSON, a dict, JSON in base64, or an `HfDeepSpeedConfig`. Values may be "auto"."""
    gradient_accumulation_steps: int | None = None
    """Micro-batches per step. Default: what the Accelerator says."""
    gradient_clipping: float | None = None
    """The norm to which the engine clips in every step. Default: it clips only where the script calls `clip_grad_norm_`."""
    zero_stage: int | None = None
    """What ranks divide: 1 optimizer states, 2 (default) gradients too, 3 parameters too."""
    is_train_batch_min: bool = True
    """Of several loaders the smallest batch size is the micro-batch of "auto"; False: the largest."""
    offload_optimizer_device: str | None = None
    """Where optimizer states live between steps: none (default), cpu or nvme."""
    offload_param_device: str | None = None
    """Where parameters live between uses, stage 3: none (default), cpu or nvme."""
    offload_optimizer_nvme_path: str | None = None
    offload_param_nvme_path: str | None = None
    zero3_init_flag: bool | None = None
    """Stage 3: transformers divides models while it builds them. Default: they are divided when they are prepared."""
    zero3_save_16bit_model: bool | None = None
    """Stage 3: what the engine's own `save_16bit_model` may do. `save_model` gathers in any case."""
    transformer_moe_cls_names: str | None = None
    """Classes of the model, with commas, that stage 3 gathers as one, whichever of their parts a batch uses (mixtures of experts)."""
    enable_msamp: bool | None = None
    """Refused: MS-AMP is not supported."""
    msamp_opt_level: str | None = None
    config_file: str | None = None
    """The same as a path in `hf_ds_config`; what the launch says."""

    def __post_init__(self) -> None:
        """Bring values into one form; refuse those that are none."""
        self.zero_stage = _whole("zero_stage", self.zero_stage, STAGES)
        self.gradient_accumulation_steps = _whole("gradient_accumulation_steps", self.gradient_accumulation_steps)
        self.gradient_clipping = _number("gradient_clipping", self.gradient_clipping)
        for name in ("offload_optimizer_device", "offload_param_device"):
            value = getattr(self, name)
            if value is not None and str(value) not in DEVICES:
                raise SettingError(f"{name}={value!r}: must be one of {', '.join(DEVICES)}")
        if self.enable_msamp:
            raise UnsupportedError("enable_msamp: MS-AMP is not supported", hint="leave it out, or use fp8 with fsdp")
        if self.hf_ds_config is not None and self.config_file is not None:
            raise SettingError("hf_ds_config and config_file are both given", hint="leave one out")
        self.resolved_config: dict[str, Any] | None = None
        """The config with a value for every "auto", once models are prepared."""
        self.resolved: dict[str, Any] = {}
        """What each "auto" became, by its dotted key."""
        self.building: Any = None
        """How models are divided while they are built; there once an Accelerator trains by this plug-in, at stage 3."""

    def strategy(self) -> str:
        """The one whose engine this is about."""
        return "deepspeed"

    @cached_property
    def given_config(self) -> dict[str, Any] | None:
        """The config as it was given, read at the first look; None: the fields make one."""
        given = self.hf_ds_config if self.hf_ds_config is not None else self.config_file
        return None if given is None else read_config(given)

    @property
    def deepspeed_config(self) -> dict[str, Any]:
        """The config: as it was given, and with its values once models are prepared."""
        return self.resolved_config or self.given_config or {}

    def to_kwargs(self) -> dict[str, Any]:
        """The fields that were given."""
        return {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) != one.default}

    def get_value(self, ds_key_long: str, default: Any = None) -> Any:
        """The config's value of a dotted key."""
        return HfDeepSpeedConfig(self.deepspeed_config).get_value(ds_key_long, default)

    def is_auto(self, ds_key_long: str) -> bool:
        """Whether the config leaves a dotted key to be filled in."""
        return bool(self.get_value(ds_key_long) == "auto")

    def is_zero3_init_enabled(self) -> bool:
        """Whether models are divided while they are built."""
        return self.building is not None and bool(self.zero3_init_flag)

    def zero3_init_context_manager(self, enable: bool = False) -> AbstractContextManager[None]:
        """A block in which models are divided while they are built, by whatever library; `enable=False`: in which they are not.

        Every rank builds the same model there; rank 0's values are everybody's. Raises SettingError below stage 3, and before there is
        an Accelerator.
        """
        if self.building is not None:
            return self.building.block(divides=enable)  # type: ignore[no-any-return]
        if not enable:
            return nullcontext()
        raise SettingError(
            "zero3_init_context_manager: models are divided while they are built at stage 3, once the Accelerator is there",
            hint="Accelerator(deepspeed_plugin=DeepSpeedPlugin(zero_stage=3)), then accelerator.deepspeed_plugin",
        )


def completed(plugin: DeepSpeedPlugin | None, launched: Mapping[str, Any]) -> DeepSpeedPlugin:
    """The script's plug-in, and the launch's word where it leaves a field open."""
    given = {} if plugin is None else plugin.to_kwargs()
    rest = {name: value for name, value in launched.items() if name not in given}
    if "hf_ds_config" in given:
        rest.pop("config_file", None)
    if not rest and plugin is not None:
        return plugin
    return DeepSpeedPlugin(**{**given, **rest})


def read_config(given: Any) -> dict[str, Any]:
    """DeepSpeed's config from a dict, a path, JSON in base64, or an object that holds one. Raises SettingError where it is none."""
    if hasattr(given, "config") and isinstance(given.config, Mapping):
        given = given.config
    if isinstance(given, Mapping):
        return json.loads(json.dumps(given))  # type: ignore[no-any-return]
    text = str(given)
    path = Path(text).expanduser()
    if len(text) < 4096 and path.is_file():
        content, where = path.read_text(encoding="utf-8"), str(path)
    else:
        content, where = _decoded(text), "DeepSpeed's config in base64"
    try:
        made = json.loads(content)
    except ValueError as error:
        raise SettingError(f"{where}: no JSON: {error}") from error
    if not isinstance(made, dict):
        raise SettingError(f"{where}: must be a JSON object")
    return made


def _decoded(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise SettingError(
            f"DeepSpeed's config {text[:80]!r} is not there",
            hint="give a path to a JSON file, a dict, or JSON in base64",
        ) from error


def _whole(name: str, value: Any, allowed: tuple[int, ...] | None = None) -> Any:
    if value is None or value == "auto":
        return value if value is None or allowed is None else None
    if isinstance(value, bool) or not str(value).isdigit() or (allowed is not None and int(value) not in allowed):
        known = "a whole number" if allowed is None else f"one of {', '.join(map(str, allowed))}"
        raise SettingError(f"{name}={value!r}: must be {known}")
    return int(value)


def _number(name: str, value: Any) -> float | None:
    if value is None or value == "auto":
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        raise SettingError(f"{name}={value!r}: must be a number") from None


class HfDeepSpeedConfig:
    """DeepSpeed's config with look-ups by dotted key."""

    def __init__(self, config_file_or_dict: Any) -> None:
        """Args: what `DeepSpeedPlugin.hf_ds_config` takes."""
        self.config = config_file_or_dict if isinstance(config_file_or_dict, dict) else read_config(config_file_or_dict)

    def find_config_node(self, ds_key_long: str) -> tuple[dict[str, Any] | None, str]:
        """The table that holds a dotted key (None: there is none), and the key's last part."""
        *tables, last = ds_key_long.split(".")
        node: Any = self.config
        for name in tables:
            node = node.get(name) if isinstance(node, dict) else None
        return node if isinstance(node, dict) else None, last

    def get_value(self, ds_key_long: str, default: Any = None) -> Any:
        """The value of a dotted key."""
        node, last = self.find_config_node(ds_key_long)
        return default if node is None else node.get(last, default)

    def del_config_sub_tree(self, ds_key_long: str, must_exist: bool = False) -> None:
        """Take a dotted key out. Raises SettingError where it `must_exist` and does not."""
        node, last = self.find_config_node(ds_key_long)
        if node is None or last not in node:
            if must_exist:
                raise SettingError(f"DeepSpeed's config has no {ds_key_long}")
            return
        del node[last]

    def is_true(self, ds_key_long: str) -> bool:
        """Whether a key is there and true."""
        return bool(self.get_value(ds_key_long))

    def is_false(self, ds_key_long: str) -> bool:
        """Whether a key is there and false."""
        value = self.get_value(ds_key_long)
        return value is not None and not value

    def is_zero2(self) -> bool:
        """Whether ranks divide gradients."""
        return bool(self.get_value("zero_optimization.stage") == 2)

    def is_zero3(self) -> bool:
        """Whether ranks divide parameters."""
        return bool(self.get_value("zero_optimization.stage") == 3)

    def is_offload(self) -> bool:
        """Whether anything lives elsewhere between uses."""
        keys = ("zero_optimization.offload_optimizer.device", "zero_optimization.offload_param.device")
        return any(self.get_value(key) in ("cpu", "nvme") for key in keys)


class DummyOptim(torch.optim.Optimizer):
    """Stands for the optimizer that DeepSpeed's config describes; `lr` and `weight_decay` fill its "auto" values."""

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, weight_decay: float = 0, **kwargs: Any) -> None:
        self.lr, self.weight_decay, self.kwargs = lr, weight_decay, kwargs
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Refused: what it stands for is made when it is prepared together with its model."""
        raise UnsupportedError("DummyOptim steps under strategy 'deepspeed' only", hint="prepare it with its model")


class DummyScheduler(LRScheduler):
    """Stands for the schedule that `lr_scheduler_callable` makes of an optimizer, or that DeepSpeed's config describes.

    Moves once a step of the optimizer on any number of ranks. `total_num_steps` and `warmup_num_steps` are of the loop that one process
    would make over all data, as for every prepared schedule; they fill the config's "auto".
    """

    moves_once = True

    def __init__(
        self,
        optimizer: Any,
        total_num_steps: int | None = None,
        warmup_num_steps: int = 0,
        lr_scheduler_callable: Callable[[Any], Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.total_num_steps, self.warmup_num_steps = total_num_steps, warmup_num_steps
        self.lr_scheduler_callable, self.kwargs = lr_scheduler_callable, kwargs
        self.inner: Any = None
        self.optimizer = getattr(optimizer, "optimizer", optimizer)
        self.last_epoch = 0

    def become(self, inner: Any) -> None:
        """Stand for this schedule from now on."""
        self.inner = inner

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Move the schedule on. Raises UnsupportedError before it stands for one."""
        if self.inner is None:
            raise UnsupportedError(
                "DummyScheduler moves under strategy 'deepspeed' only", hint="prepare it together with its optimizer"
            )
        self.inner.step(*args, **kwargs)
        self.last_epoch += 1

    def get_last_lr(self) -> list[Any]:
        """The rates now in force."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """The schedule's state."""
        return {} if self.inner is None else dict(self.inner.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state into the schedule."""
        if self.inner is not None:
            self.inner.load_state_dict(state_dict)
