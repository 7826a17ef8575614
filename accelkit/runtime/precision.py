"""Mixed precision: which type the model computes in, how its forward enters autocast, and scaling of losses for fp16."""

import types
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch
from torch import nn
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast
from torch.amp.grad_scaler import OptState
from torch.utils.hooks import RemovableHandle

from accelkit.runtime import float8, interrupted, structure
from accelkit.runtime.devices import Kind
from accelkit.runtime.errors import SettingError, UnsupportedError
from accelkit.runtime.settings import AORecipeKwargs, AutocastKwargs, GradScalerKwargs, Handlers
from accelkit.runtime.state import AcceleratorState, PartialState

TYPES: Final[dict[str, torch.dtype | None]] = {
    "no": None,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.bfloat16,
}
"""What is computed in beside float32; with fp8, what is left beside the linear layers in 8 bits."""


class LossScaler(torch.amp.GradScaler):
    """A scaler whose factor changes between steps only, however many optimizers share it.

    `update` is put off until the next loss is scaled: all gradients of one step are unscaled by the factor they were scaled by.
    """

    def __init__(self, device: str, **settings: Any) -> None:
        super().__init__(device, **settings)
        self._stepped: set[int] = set()
        """Optimizers that have stepped since the last update, or have let go of gradients that were unscaled."""
        self._losses = 0
        """Losses that were scaled so far."""
        self._unscaled_at: dict[int, int] = {}
        """That number, when an optimizer's gradients were unscaled last."""

    def __getstate__(self) -> dict[str, Any]:
        self.settle()
        state: dict[str, Any] = super().__getstate__()
        return state

    def scale(self, outputs: Any) -> Any:
        """The scaled loss."""
        self.settle()
        self._losses += 1
        return super().scale(outputs)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Bring the optimizer's gradients back to their true size."""
        if id(optimizer) in self._stepped:
            self.settle()
        super().unscale_(optimizer)
        self._unscaled_at[id(optimizer)] = self._losses

    def unscale_once(self, optimizer: torch.optim.Optimizer) -> None:
        """The same, once per step. Raises SettingError where gradients of another loss came on top of unscaled ones."""
        stage = self._per_optimizer_states[id(optimizer)]["stage"]
        if stage is OptState.READY:
            self.unscale_(optimizer)
        elif stage is OptState.UNSCALED and self._unscaled_at[id(optimizer)] != self._losses:
            raise SettingError(
                f"gradients of {type(optimizer).__name__} were unscaled, by clipping for example, and then a loss was "
                "scaled again without a step: its gradients cannot be told from those",
                hint="optimizer.zero_grad() before the next backward, or clip after the last backward of a step",
            )

    def drop(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer's gradients are let go of: no step comes for what was unscaled. An overflow in it counts all the same."""
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is not OptState.UNSCALED:
            return
        if state["found_inf_per_device"]:
            self._stepped.add(id(optimizer))
        else:
            del self._per_optimizer_states[id(optimizer)]

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Step, unless a gradient overflowed. The factor changes later."""
        if id(optimizer) in self._stepped:
            self.settle()
        found = super().step(optimizer, *args, **kwargs)
        self._stepped.add(id(optimizer))
        return found

    def update(self, new_scale: Any = None) -> None:
        """Change the factor now."""
        self._stepped.clear()
        super().update(new_scale)

    def settle(self) -> None:
        """Change the factor, if an optimizer has stepped."""
        if self._stepped:
            self.update()

    def state_dict(self) -> dict[str, Any]:
        """The factor and its history."""
        self.settle()
        state: dict[str, Any] = super().state_dict()
        return state


class AutocastHook:
    """Runs a module's forward under autocast and gives its outputs as float32. Lives on the module as a pair of hooks.

    Hooks leave the module's class, `forward` and signature alone; they are copied and pickled with it.
    """

    def __init__(self, device_type: str, dtype: torch.dtype, settings: AutocastKwargs) -> None:
        self.device_type = device_type
        self.dtype = dtype
        self.settings = settings
        self._open: list[torch.autocast] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": []}

    def __deepcopy__(self, memo: dict[int, Any]) -> "AutocastHook":
        return AutocastHook(self.device_type, self.dtype, self.settings)

    def context(self) -> torch.autocast:
        """A new autocast block."""
        return torch.autocast(
            self.device_type,
            dtype=self.dtype,
            enabled=self.settings.enabled,
            cache_enabled=self.settings.cache_enabled,
        )

    def enter(self, module: nn.Module, args: Any) -> None:
        """Before forward. torch.compile traces the functions of a block, not its methods."""
        if torch.compiler.is_compiling():
            given = self.device_type, self.dtype, self.settings.enabled, self.settings.cache_enabled
            self._open.append(_enter_autocast(*given))  # type: ignore[no-untyped-call]
        else:
            interrupted.enter(self, self.context())

    def leave(self, module: nn.Module, args: Any, output: Any) -> Any:
        """After forward, also when it raised (`output` is None then)."""
        if torch.compiler.is_compiling():
            if self._open:
                _exit_autocast(self._open.pop())  # type: ignore[no-untyped-call]
        else:
            interrupted.leave(self)
        return structure.to_float32(output)


def _leave_frames_alone(code: types.CodeType) -> None:
    """Keep torch.compile from compiling a function by itself, and what it calls; inside of a frame that it traces both are traced.

    A graph that only enters autocast, or only leaves it, would do so while it is compiled, and not when it runs.
    """
    frames: Any = torch._C._dynamo.eval_frame  # noqa: SLF001  (torch._dynamo has it too, and takes a second to import)
    if hasattr(frames, "skip_code"):
        frames.skip_code(code)
    else:
        skip = frames._FrameAction.SKIP  # noqa: SLF001
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))  # noqa: SLF001


_leave_frames_alone(AutocastHook.enter.__code__)
_leave_frames_alone(AutocastHook.leave.__code__)


class Precision:
    """A precision on a device: full ("no") when it has no type to compute in."""

    def __init__(self, name: str, device_type: str, handlers: Handlers) -> None:
        self.name = name
        self._device_type = device_type
        self._dtype = TYPES[name]
        self._settings = handlers.get(AutocastKwargs)
        self._recipe = handlers.get(AORecipeKwargs) if name == "fp8" else None
        self.scaler: LossScaler | None = None
        """Scales losses so that small fp16 gradients survive; None for other types."""
        if name == "fp16":
            self.scaler = LossScaler(device_type, **handlers.get(GradScalerKwargs).to_kwargs())

    @property
    def dtype(self) -> torch.dtype | None:
        """What models compute in; None: as they are."""
        return self._dtype

    @property
    def native_amp(self) -> bool:
        """Whether models compute in a smaller type."""
        return self._dtype is not None

    def autocast(self, settings: AutocastKwargs | None = None) -> AbstractContextManager[Any]:
        """A block that computes in this precision."""
        interrupted.close()
        if self._dtype is None:
            return nullcontext()
        return AutocastHook(self._device_type, self._dtype, settings or self._settings).context()

    def attach(self, model: nn.Module) -> tuple[RemovableHandle, ...]:
        """Make the model's forward run in this precision, once; returns the handles that undo it."""
        if self._dtype is None or is_attached(model):
            return ()
        if self._recipe is not None:
            float8.convert(model, self._recipe)
        hook = AutocastHook(self._device_type, self._dtype, self._settings)
        return (
            model.register_forward_pre_hook(hook.enter, prepend=True),
            model.register_forward_hook(hook.leave, always_call=True),
        )

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss to call backward on."""
        interrupted.close()
        return loss if self.scaler is None else self.scaler.scale(loss)


def is_attached(model: nn.Module) -> bool:
    """Whether a model's forward runs under autocast already."""
    return any(_is_ours(hook) for hook in model._forward_hooks.values())  # noqa: SLF001  (torch shows them nowhere else)


def detach(model: nn.Module) -> None:
    """Take the hooks of :meth:`Precision.attach` off a model."""
    before, after, always = model._forward_pre_hooks, model._forward_hooks, model._forward_hooks_always_called  # noqa: SLF001
    for key in [key for key, hook in before.items() if _is_ours(hook)]:
        del before[key]
    for key in [key for key, hook in after.items() if _is_ours(hook)]:
        del after[key]
        always.pop(key, None)


def _is_ours(hook: Any) -> bool:
    return isinstance(getattr(hook, "__self__", None), AutocastHook)


def make(name: str, kind: Kind, handlers: Handlers) -> Precision:
    """The precision of that name on a kind of device.

    Raises SettingError for an unknown name, UnsupportedError for what the device cannot compute.
    """
    if name not in TYPES:
        raise SettingError(
            f"Unknown mixed_precision mode: {name!r}. Choose one of {', '.join(TYPES)}.",
            hint="Accelerator(mixed_precision=...), `kit run --precision` and KIT_PRECISION take the same names",
        )
    if name != "fp8" and handlers.given(AORecipeKwargs) is not None:
        raise SettingError(f"AORecipeKwargs is for mixed_precision='fp8', but it is {name!r}")
    if name == "fp8":
        float8.require(kind, handlers.get(AORecipeKwargs))
    elif not kind.supports(name):
        fitting = [other for other in TYPES if kind.supports(other)]
        raise UnsupportedError(
            f"mixed_precision={name!r} is not available on {kind.name}", hint=f"this device can do {', '.join(fitting)}"
        )
    return Precision(name, kind.name, handlers)


def get_grad_scaler(distributed_type: Any = None, **kwargs: Any) -> LossScaler:
    """A scaler of losses for this rank's device; `kwargs` are those of `GradScalerKwargs`."""
    del distributed_type  # no strategy here needs a scaler of its own
    return LossScaler(PartialState().device.type, **kwargs)


def get_mixed_precision_context_manager(
    native_amp: bool = False, autocast_kwargs: AutocastKwargs | None = None
) -> AbstractContextManager[Any]:
    """A block in the precision of the `Accelerator` in force; a block that does nothing without `native_amp`."""
    state = AcceleratorState.current()
    dtype = TYPES.get(state.mixed_precision) if state is not None else None
    if not native_amp or dtype is None:
        return nullcontext()
    return AutocastHook(PartialState().device.type, dtype, autocast_kwargs or AutocastKwargs()).context()
