"""Training by DeepSpeed's engine: ZeRO's stages 1 to 3, with its own step, loss scaling and offload. A library of its own.

Model and optimizer may be prepared in any order: the engine is made when both are there.
"""

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from io import StringIO
from typing import Any, Final

import torch
from torch import nn

from accelkit.runtime import models
from accelkit.runtime.environment import provide
from accelkit.runtime.errors import SettingError, UnsupportedError
from accelkit.runtime.gradients import GradientState
from accelkit.runtime.settings import DistributedType, Handlers
from accelkit.runtime.state import PartialState
from accelkit.runtime.strategies import deepspeed_config, deepspeed_library, deepspeed_plugin
from accelkit.runtime.strategies.base import NOTHING, Capabilities, Steps, Strategy
from accelkit.runtime.strategies.deepspeed_building import Building
from accelkit.runtime.strategies.deepspeed_model import DeepSpeedEngineWrapper, Training
from accelkit.runtime.strategies.deepspeed_parts import total_norm
from accelkit.runtime.strategies.deepspeed_plugin import DeepSpeedPlugin, DummyOptim, DummyScheduler
from accelkit.runtime.strategies.deepspeed_schedule import Noted

_log = logging.getLogger(__name__)
_PRECISIONS: Final = {None: "no", torch.bfloat16: "bf16", torch.float16: "fp16"}


class DeepSpeedStrategy(Strategy):
    """Training with DeepSpeed, on CPU and on CUDA."""

    name = "deepspeed"
    capabilities = Capabilities(owns_loss_scaling=True, moves_models=False)

    def __init__(self, state: PartialState, handlers: Handlers, dtype: torch.dtype | None = None) -> None:
        super().__init__(state, handlers, dtype)
        self._library = deepspeed_library.load()
        state.start_group()
        provide(LOCAL_RANK=state.local_process_index)  # DeepSpeed reads it; no launcher has set it under plain python
        self._fit_device()
        launched = state.defaults.settings.strategy_options.get("deepspeed", {})
        given = handlers.given(DeepSpeedPlugin)
        self.plugin = deepspeed_plugin.completed(given, launched)
        self._prepare_building(given)
        self._trainings: list[Training] = []
        self._waiting: list[_Waiting] = []
        self._batches: list[int] = []
        self._schedules: list[Noted] = []

    def _fit_device(self) -> None:
        """Raise UnsupportedError where DeepSpeed would compute on another device than this run."""
        kind = self._library.accelerator.get_accelerator().device_name()
        if kind != self.state.kind.name:
            raise UnsupportedError(
                f"DeepSpeed computes on {kind}, and this run on {self.state.kind.name}",
                hint=f"set DS_ACCELERATOR={self.state.kind.name} for the run: kit run --env DS_ACCELERATOR={self.state.kind.name}",
            )

    def _prepare_building(self, given: DeepSpeedPlugin | None) -> None:
        """Have models that are built from now on divided, where that is asked for; let the script ask for it later."""
        config = deepspeed_config.before_models(self.plugin, self.state.num_processes, _PRECISIONS[self.dtype])
        if config["zero_optimization"].get("stage") == 3:
            self.plugin.building = Building(config)
            if given is not None:
                given.building = self.plugin.building
            self.plugin.building.begin(divides=bool(self.plugin.zero3_init_flag))
        elif self.plugin.zero3_init_flag:
            warnings.warn("zero3_init_flag has no effect below stage 3: zero_stage=3 divides parameters", stacklevel=6)

    @property
    def distributed_type(self) -> DistributedType:
        """How scripts know this way of training."""
        return DistributedType.DEEPSPEED

    # ---- models and optimizers ------------------------------------------------------------------------------------

    def wrap(self, model: nn.Module) -> nn.Module:
        """DeepSpeed's engine around the model, from the moment that its optimizer is there; rank 0's values are everybody's."""
        if isinstance(model, DeepSpeedEngineWrapper) or not any(one.requires_grad for one in model.parameters()):
            return model
        models.refuse_divided(model, self.name)
        made = Training(model, self.dtype, self._start)
        self._trainings.append(made)
        self._match()
        return made.wrapper

    def unwrap(self, model: nn.Module) -> nn.Module:
        """The model inside."""
        return model.module if isinstance(model, DeepSpeedEngineWrapper) else model

    def adopt(self, optimizer: torch.optim.Optimizer) -> Steps:
        """Let the engine of the optimizer's model step in its place."""
        waiting = _Waiting(optimizer)
        self._waiting.append(waiting)
        self._match()
        return waiting

    def _match(self) -> None:
        """Bring optimizers and models together that share parameters."""
        for waiting in [one for one in self._waiting if one.training is None]:
            given = [one for group in waiting.optimizer.param_groups for one in group["params"]]
            for training in self._trainings:
                if any(training.owns(one) for one in given):
                    if not all(training.owns(one) for one in given):
                        raise SettingError(
                            "strategy 'deepspeed': an optimizer has parameters of several models",
                            hint="make an optimizer for each model, or use strategy 'ddp'",
                        )
                    training.take(waiting.optimizer)
                    waiting.training = training

    def note_loader(self, batch_size: int | None) -> None:
        """Take note of the micro-batch."""
        if batch_size is not None:
            self._batches.append(batch_size)

    def note_scheduler(self, scheduler: Any, repeats: int) -> None:
        """Take note of a stand-in for a schedule; where its engine is there already, it gets its schedule now."""
        if isinstance(scheduler, DummyScheduler):
            noted = Noted(scheduler, repeats)
            self._schedules.append(noted)
            for one in self._trainings:
                if one.engine is not None and noted.is_of(one.optimizer):
                    noted.fill(one.engine, one.optimizer)

    def complete(self) -> None:
        """Make the engines for which everything is there."""
        for training in self._trainings:
            training.begin()

    def forget(self) -> None:
        """Let go of engines."""
        for training in self._trainings:
            if training.engine is not None:
                training.engine.destroy()
        self._trainings, self._waiting, self._batches, self._schedules = [], [], [], []

    def _start(self, training: Training) -> Any:
        """DeepSpeed's engine for a model and its optimizer."""
        stands_in = isinstance(training.optimizer, DummyOptim)
        config = deepspeed_config.resolve(self.plugin, self._facts(training))
        described = "optimizer" in config
        if described != stands_in:
            has, lacks = (
                ("an optimizer", "and the script has one, too")
                if described
                else ("no optimizer", "and DummyOptim needs one")
            )
            raise SettingError(
                f"DeepSpeed's config has {has}, {lacks}",
                hint="give DummyOptim where the config describes the optimizer, and only there",
            )
        _log.info(
            "DeepSpeed's config: %s", ", ".join(f"{name}={value}" for name, value in self.plugin.resolved.items())
        )
        model = training.model
        if not _is_divided(model):
            model.to(self.state.device)
        deepspeed_library.keep_whole(model, config, self.plugin.transformer_moe_cls_names)
        with warnings.catch_warnings(), redirect_stdout(StringIO()) as printed, deepspeed_library.compiling():
            warnings.simplefilter("ignore")  # of DeepSpeed's own making
            engine, *_ = self._library.initialize(
                model=model,
                optimizer=None if stands_in else training.optimizer,
                model_parameters=training.optimizer.param_groups if stands_in else None,
                config=config,
                dist_init_required=False,
            )
        _log.info(printed.getvalue().strip())
        if stands_in:
            training.optimizer.param_groups = engine.optimizer.optimizer.param_groups
            training.optimizer._opt_called = True  # noqa: SLF001  (torch's schedules warn about the order of calls by it)
        for noted in self._of_schedule(training):
            noted.fill(engine, training.optimizer)
        return engine

    def _of_schedule(self, training: Training) -> list[Noted]:
        return [one for one in self._schedules if one.is_of(training.optimizer)]

    def _facts(self, training: Training) -> deepspeed_config.Facts:
        shape = getattr(training.model, "config", None)
        hidden = getattr(shape, "hidden_size", None) or max(getattr(shape, "hidden_sizes", None) or [0]) or None
        defaults = training.optimizer.defaults
        known = {name: defaults[name] for name in ("lr", "weight_decay", "betas", "eps") if name in defaults}
        return deepspeed_config.Facts(
            size=self.state.num_processes,
            precision=_PRECISIONS[self.dtype],
            steps=GradientState().num_steps,
            batches=tuple(self._batches),
            hidden=hidden if isinstance(hidden, int) else None,
            optimizer=known,
            scheduler={name: value for one in self._of_schedule(training) for name, value in one.values().items()},
        )

    # ---- the step -------------------------------------------------------------------------------------------------

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Gradients by the engine, divided among the ranks as its stage says."""
        engines = [one for one in self._trainings if one.engine is not None]
        wrong = sorted(set(kwargs) - {"retain_graph"})
        if wrong:
            raise UnsupportedError(f"backward({', '.join(wrong)}=...): DeepSpeed's engine takes retain_graph alone")
        if not engines:
            raise SettingError(
                "backward: DeepSpeed's engine needs the optimizer, and none of a prepared model is prepared",
                hint="accelerator.prepare(model, optimizer)",
            )
        if len(engines) == 1:
            engines[0].backward(loss, **kwargs)
        else:
            _backward_of_several(engines, loss, **kwargs)

    def no_sync(self, models: Iterable[nn.Module]) -> AbstractContextManager[Any]:
        """A block in which no backward completes a window."""
        return self._boundaries(models, value=False)

    def sync_in_backward(self, model: nn.Module) -> AbstractContextManager[Any]:
        """A block whose backward completes a window."""
        return self._boundaries([model], value=True)

    @contextmanager
    def _boundaries(self, given: Iterable[nn.Module], *, value: bool) -> Iterator[None]:
        wrappers = [one for one in given if isinstance(one, DeepSpeedEngineWrapper)]
        trainings = [one for one in self._trainings if one.wrapper in wrappers]
        for one in trainings:
            one.begin()
        before = [one.boundary(value=value) for one in trainings]
        try:
            yield
        finally:
            for one, was in zip(trainings, before, strict=True):
                one.boundary(value=was)

    def join(
        self, models: Sequence[nn.Module], *, enable: bool, complete: Callable[[], None] | None = None
    ) -> AbstractContextManager[Any]:
        """Refused: a rank without batches cannot take part in DeepSpeed's exchanges."""
        if enable and self.state.num_processes > 1 and any(isinstance(one, DeepSpeedEngineWrapper) for one in models):
            raise UnsupportedError(
                "join_uneven_inputs: ranks under DeepSpeed need as many batches each",
                hint="leave even_batches=True, or use strategy 'ddp'",
            )
        return NOTHING

    def grad_norm(self, parameters: Sequence[torch.Tensor], norm_type: float) -> torch.Tensor:
        """The norm of the whole gradients, the same on every rank. While a window is not complete there are none: zero."""
        chosen = list(parameters)
        dtype = torch.promote_types(chosen[0].dtype, torch.float32) if chosen else torch.float32
        scale = next((one.engine.optimizer.loss_scale for one in self._of(chosen)), 1.0)
        norm = total_norm(self._pieces(chosen), norm_type, self.state.device)
        return (norm / scale).to(dtype)

    def _of(self, parameters: Sequence[Any]) -> list[Training]:
        return [one for one in self._trainings if one.engine is not None and any(map(one.owns, parameters))]

    def _pieces(self, parameters: Sequence[Any]) -> list[torch.Tensor]:
        return [piece for one in self._of(parameters) for piece in one.pieces([p for p in parameters if one.owns(p)])]

    def clip_grad_norm(self, parameters: Sequence[torch.Tensor], max_norm: float, norm_type: float) -> torch.Tensor:
        """Scale this rank's pieces of gradients by the norm of the whole; the engine steps with them."""
        norm = self.grad_norm(parameters, norm_type)
        factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        for piece in self._pieces(parameters):
            piece.mul_(factor.to(piece.device))
        return norm

    def clip_grad_value(self, parameters: Sequence[torch.Tensor], clip_value: float) -> None:
        """Limit each element of the gradients to [-clip_value, clip_value]."""
        for one in self._of(parameters):
            limit = clip_value * one.engine.optimizer.loss_scale
            for piece in one.pieces([p for p in parameters if one.owns(p)]):
                piece.clamp_(-limit, limit)

    # ---- states ---------------------------------------------------------------------------------------------------

    def _training(self, model: nn.Module) -> Training | None:
        """What trains a model; None where nothing has begun to."""
        plain = models.unwrap(model, keep_torch_compile=False)
        found = next(
            (one for one in self._trainings if models.unwrap(one.model, keep_torch_compile=False) is plain), None
        )
        if found is not None:
            found.begin()
        return found if found is not None and found.engine is not None else None

    def live_state(self, model: nn.Module) -> dict[str, Any]:
        """The model's state by its own names; parameters are to be filled."""
        found = self._training(model)
        return super().live_state(model) if found is None else found.live_state()

    def model_state(self, model: nn.Module, *, keep: bool = True) -> dict[str, Any]:
        """The whole state in full precision, put together a tensor at a time on the CPU of ranks that `keep` it."""
        found = self._training(model)
        return super().live_state(model) if found is None else found.state(keep=keep)

    def load_model_state(self, model: nn.Module, state: Mapping[str, Any], *, strict: bool) -> None:
        """Load a whole state."""
        found = self._training(model)
        if found is None:
            super().load_model_state(model, state, strict=strict)
        else:
            found.load_state(state, strict=strict)

    def _trained_by(self, optimizer: Any) -> Training | None:
        inner = getattr(optimizer, "optimizer", optimizer)
        return next((one for one in self._trainings if one.optimizer is inner and one.engine is not None), None)

    def form(self, optimizer: Any) -> Any:
        """The optimizer's groups with the script's parameters in them."""
        found = self._trained_by(optimizer)
        return optimizer if found is None else found.optimizer_form()

    def optimizer_state(self, optimizer: Any, *, keep: bool = True) -> dict[str, Any]:
        """The whole state, put together on the CPU of ranks that `keep` it, as one process would have it."""
        found = self._trained_by(optimizer)
        return super().live_optimizer_state(optimizer) if found is None else found.optimizer_state(keep=keep)

    def load_optimizer_state(self, optimizer: Any, state: dict[str, Any]) -> None:
        """Load a whole state."""
        found = self._trained_by(optimizer)
        if found is None:
            super().load_optimizer_state(optimizer, state)
        else:
            found.load_optimizer_state(state)


class _Waiting:
    """Steps for an optimizer, by the engine of its model once that is known."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.training: Training | None = None

    def step(self) -> bool:
        """One step; whether it took place."""
        if self.training is None:
            raise SettingError(
                "optimizer.step: no prepared model has this optimizer's parameters",
                hint="prepare the model, too: accelerator.prepare(model, optimizer)",
            )
        return self.training.step()

    def zero_grad(self) -> None:
        """Let go of gradients that no step has used."""
        if self.training is not None:
            self.training.zero_grad()


def _is_divided(model: nn.Module) -> bool:
    return any(hasattr(one, "ds_id") for one in model.parameters())


def _backward_of_several(engines: Sequence[Training], loss: torch.Tensor, **kwargs: Any) -> None:
    """One loss, several engines: each is told by hooks on what its model put out, and divides by its own number of micro-batches."""
    if any(one.engine.optimizer.loss_scale != 1.0 for one in engines):
        raise UnsupportedError("several models under fp16: each engine scales its own loss", hint="use bf16")
    (loss * engines[0].engine.gradient_accumulation_steps()).backward(**kwargs)
    for one in engines:
        one.note_gradients()
