"""A model whose training is DeepSpeed's: the engine, once model and optimizer are known, and what it holds."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from accelkit.runtime import models
from accelkit.runtime.errors import SettingError
from accelkit.runtime.strategies.deepspeed_parts import Parts


class DeepSpeedEngineWrapper(models.Wrapper):
    """What scripts call: the model as it is until its optimizer is prepared, then DeepSpeed's engine around it.

    Attributes that are neither the model's nor a module's are the engine's.
    """

    def __init__(self, module: nn.Module, training: "Training") -> None:
        super().__init__()
        self.module = module
        self.__dict__["_owner"] = training

    @property
    def engine(self) -> Any:
        """DeepSpeed's engine; None before model and optimizer are prepared."""
        return self._owner.engine

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            inner = self.__dict__["_modules"].get("module")
            if name.startswith("__") or inner is None:
                raise
            engine = self.__dict__["_owner"].engine
            return getattr(inner, name) if hasattr(inner, name) or engine is None else getattr(engine, name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own, through the engine."""
        return self._owner.forward(*args, **kwargs)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Let go of gradients."""
        self._owner.discard()


class Training:
    """One model, the optimizer that has its parameters, and the engine of both."""

    def __init__(self, model: nn.Module, computes: torch.dtype | None, start: Callable[["Training"], Any]) -> None:
        """Args: `computes`, the type under mixed precision; `start` makes the engine."""
        self.model = model
        self.wrapper = DeepSpeedEngineWrapper(model, self)
        self.optimizer: Any = None
        self.groups: list[list[Any]] = []
        """The optimizer's parameters as the script gave them: the engine puts its own into their place."""
        self.engine: Any = None
        self.parts: Any = None
        self._start = start
        self._has_gradients = False
        self._ids = {id(one) for one in model.parameters()}
        self.forms = {id(one): _form(one.dtype, computes) for one in model.parameters()}
        """The type in which the model's state is given and taken, by parameter."""

    def owns(self, parameter: Any) -> bool:
        """Whether a parameter is this model's."""
        return id(parameter) in self._ids

    def take(self, optimizer: torch.optim.Optimizer) -> None:
        """Train with this optimizer."""
        if self.optimizer is not None:
            raise SettingError(
                "strategy 'deepspeed': a model has one optimizer, and a second one with its parameters is being prepared",
                hint="give the optimizer several groups of parameters, or use strategy 'ddp'",
            )
        self.optimizer = optimizer
        self.groups = [list(group["params"]) for group in optimizer.param_groups]

    def begin(self) -> None:
        """Make the engine, where model and optimizer are there and it is not."""
        if self.engine is None and self.optimizer is not None:
            self.engine = self._start(self)
            self.parts = Parts(self.engine.optimizer, self.engine.optimizer.optimizer)
            self.boundary(value=True)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's own, through the engine."""
        self.begin()
        called = self.model if self.engine is None else self.engine
        return called(*args, **kwargs)

    # ---- the step -------------------------------------------------------------------------------------------------

    def boundary(self, *, value: bool) -> bool:
        """Say whether the next backward completes a window; returns what was said before."""
        if self.engine is None:
            return True
        before = bool(self.engine.is_gradient_accumulation_boundary())
        self.engine.set_gradient_accumulation_boundary(value)
        return before

    def backward(self, loss: torch.Tensor, *, retain_graph: bool = False) -> None:
        """Gradients of a loss that is divided already."""
        self.engine.backward(loss, retain_graph=retain_graph, scale_wrt_gas=False)
        self._has_gradients = True

    def note_gradients(self) -> None:
        """Gradients are there that came by themselves."""
        self._has_gradients = True

    def step(self) -> bool:
        """The engine's step; whether it took place."""
        self.begin()
        if self.engine is None:
            raise SettingError(
                "optimizer.step: no prepared model has this optimizer's parameters",
                hint="prepare the model, too: accelerator.prepare(model, optimizer)",
            )
        self.engine.step()
        self._has_gradients = False
        return bool(self.engine.was_step_applied())

    def zero_grad(self) -> None:
        """Let go of gradients that no step has used."""
        if self._has_gradients:
            self.discard()

    def discard(self) -> None:
        """Let go of all gradients."""
        self._has_gradients = False
        if self.parts is None:
            nn.Module.zero_grad(self.wrapper)
        else:
            self.parts.discard()

    # ---- states ---------------------------------------------------------------------------------------------------

    def live_state(self) -> dict[str, Any]:
        """The model's state by its own names; parameters are empty tensors of the whole's shape, to be filled."""
        made: dict[int, torch.Tensor] = {}
        named = dict(self.model.named_parameters(remove_duplicate=False))
        return {
            name: value if name not in named else self._empty(named[name], made)
            for name, value in self.model.state_dict().items()
        }

    def _empty(self, parameter: Any, made: dict[int, torch.Tensor]) -> torch.Tensor:
        if id(parameter) not in made:
            made[id(parameter)] = torch.empty(self.parts.shape(parameter), dtype=self.forms[id(parameter)])
        return made[id(parameter)]

    def state(self, *, keep: bool) -> dict[str, Any]:
        """The model's whole state by its own names, on the CPU of ranks that `keep` it. All ranks call it."""
        made: dict[int, Any] = {}
        named = dict(self.model.named_parameters(remove_duplicate=False))
        whole = {
            name: value if name not in named else self._whole(named[name], made, keep=keep)
            for name, value in self.model.state_dict().items()
        }
        return whole if keep else {}

    def _whole(self, parameter: Any, made: dict[int, Any], *, keep: bool) -> Any:
        if id(parameter) in made:
            return made[id(parameter)]
        form = self.forms[id(parameter)]
        if parameter.requires_grad and (self.parts.divides_parameters or parameter.dtype != form):
            value = self.parts.master(parameter)
        else:
            with self.gathered(parameter):
                value = parameter.detach().clone() if self.parts.divides_parameters else parameter.detach()
        made[id(parameter)] = value.to("cpu", form) if keep else None
        return made[id(parameter)]

    def gathered(self, parameter: Any) -> Any:
        """A block in which a parameter is whole; what rank 0 writes there stays."""
        if not self.parts.divides_parameters:
            return nullcontext()
        import deepspeed

        return deepspeed.zero.GatheredParameters([parameter], modifier_rank=0)

    def load_state(self, state: Mapping[str, Any], *, strict: bool) -> None:
        """Load what :meth:`state` gave. All ranks call it."""
        named = dict(self.model.named_parameters(remove_duplicate=False))
        done: set[int] = set()
        with torch.no_grad():
            for name, parameter in named.items():
                if name not in state or id(parameter) in done:
                    continue
                done.add(id(parameter))
                if parameter.requires_grad:
                    self.parts.set_master(parameter, state[name])
                with self.gathered(parameter):
                    parameter.copy_(state[name])
        rest = {name: value for name, value in state.items() if name not in named}
        missing = set(named) - set(state)
        found = self.model.load_state_dict(rest, strict=False)
        unknown = [*found.unexpected_keys, *missing]
        if strict and unknown:
            raise SettingError(f"the state is of another model: {', '.join(sorted(unknown)[:5])}")

    def optimizer_form(self) -> Any:
        """The optimizer's groups with the script's parameters in them."""
        groups = [
            {**group, "params": parameters}
            for group, parameters in zip(self.optimizer.param_groups, self.groups, strict=True)
        ]
        return SimpleNamespace(param_groups=groups, state={}, defaults=self.optimizer.defaults)

    def optimizer_state(self, *, keep: bool) -> dict[str, Any]:
        """The optimizer's whole state as its class would give it in one process, on the CPU of ranks that `keep` it. All ranks call it."""
        names = self.parts.names()
        parameters = [one for group in self.groups for one in group]
        state: dict[int, Any] = {}
        for index, parameter in enumerate(parameters):
            if not (names and parameter.requires_grad):
                continue
            values = self.parts.state(parameter, names)
            if keep:
                state[index] = {
                    name: value.to("cpu", self.forms[id(parameter)] if names[name] else value.dtype)
                    if isinstance(value, torch.Tensor)
                    else value
                    for name, value in values.items()
                }
        first, groups = 0, []
        for group, mine in zip(self.optimizer.param_groups, self.groups, strict=True):
            groups.append({**group, "params": list(range(first, first + len(mine)))})
            first += len(mine)
        return {"state": state, "param_groups": groups} if keep else {}

    def load_optimizer_state(self, state: Mapping[str, Any]) -> None:
        """Load what :meth:`optimizer_state` gave. All ranks call it."""
        indices = [index for group in state["param_groups"] for index in group["params"]]
        parameters = dict(zip(indices, (one for group in self.groups for one in group), strict=True))
        self.parts.set_state(
            [(parameters[index], values) for index, values in state["state"].items() if parameters[index].requires_grad]
        )
        for mine, theirs in zip(self.optimizer.param_groups, state["param_groups"], strict=True):
            mine.update({name: value for name, value in theirs.items() if name != "params"})

    def pieces(self, parameters: list[Any]) -> list[torch.Tensor]:
        """This rank's pieces of gradients; none while a window is not complete."""
        if self.engine is None or not self._has_gradients:
            return []
        if not self.engine.is_gradient_accumulation_boundary():
            return []
        found: list[torch.Tensor] = self.parts.gradients(parameters)
        return found


def _form(given: torch.dtype, computes: torch.dtype | None) -> torch.dtype:
    return torch.promote_types(given, torch.float32) if computes is not None else given
