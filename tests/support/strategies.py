"""What every strategy is tried with: a small model, its training in one process, and the strategies with their settings."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import nn

from accelkit import Accelerator, AcceleratorState, DistributedDataParallelKwargs, GradientState
from accelkit.runtime import strategies
from accelkit.runtime.parallelism import ParallelismConfig, TorchTensorParallelConfig
from accelkit.runtime.strategies.deepspeed_plugin import DeepSpeedPlugin
from accelkit.runtime.strategies.fsdp_plugin import FullyShardedDataParallelPlugin

strategies.REGISTRY["toy"] = "tests.support.toy_strategy:ToyStrategy"
BATCH = 16
PLAN = {"blocks.*.up": "colwise", "blocks.*.down": "rowwise"}


class Block(nn.Module):
    """Two layers around an activation, added to what comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 8)
        self.down = nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of the same shape."""
        return x + self.down(self.up(x).tanh())


class Net(nn.Module):
    """Widths that four ranks do not divide evenly, two tied weights, a frozen weight, a buffer and one that is not saved."""

    def __init__(self, *, spare: bool = False) -> None:
        super().__init__()
        self.enter = nn.Linear(6, 6)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.leave = nn.Linear(6, 6, bias=False)
        self.leave.weight = self.enter.weight
        self.gain = nn.Parameter(torch.linspace(0.9, 1.1, 6), requires_grad=False)
        self.register_buffer("shift", torch.linspace(-0.1, 0.1, 6))
        self.register_buffer("factor", torch.tensor(0.5), persistent=False)
        self.spare = nn.Linear(6, 6) if spare else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of the same shape."""
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        return self.leave(x * self.gain + self.shift) * self.factor


def build(*, spare: bool = False, seed: int = 3) -> Net:
    """A model of known values."""
    torch.manual_seed(seed)
    return Net(spare=spare).double()


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """One with a state, a schedule of its own and two groups."""
    weights = list(model.parameters())
    return torch.optim.AdamW([{"params": weights[:2]}, {"params": weights[2:], "lr": 0.01}], lr=0.02)


def batch_of(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The whole batch of a step."""
    generator = torch.Generator().manual_seed(step)
    inputs = torch.rand(BATCH, 6, generator=generator, dtype=torch.float64) * 2 - 1
    return inputs, inputs.sin() * 2 + step % 3


EXACT = {"rtol": 1e-9, "atol": 1e-11}


@cache
def float32_bound() -> dict[str, float]:
    """How far one process that computes in float32 is from one in float64, in losses, norms and weights, six steps on; times eight.

    Eight, because a strategy rounds more often than that process: gradients when they are summed and clipped, weights when they are cast.
    """
    wide, narrow = (reference(6, clip=0.7, dtype=dtype) for dtype in (torch.float64, torch.float32))
    weights = zip(wide[0].state_dict().values(), narrow[0].state_dict().values(), strict=True)
    furthest = max(float((one - other.double()).abs().max()) for one, other in weights)
    numbers = zip(wide[1] + wide[2], narrow[1] + narrow[2], strict=True)
    return {"rtol": 0.0, "atol": 8 * max(furthest, *(abs(one - other) for one, other in numbers))}


@dataclass(frozen=True)
class Case:
    """A strategy with settings."""

    name: str
    make: Callable[[int], dict[str, Any]]
    """Arguments of the Accelerator for a number of ranks."""
    sizes: tuple[int, ...] = (1, 2, 4)
    allows_unused: bool = True
    """Parameters may have no part in the loss."""
    only: str | tuple[str, ...] = field(default="check_", kw_only=True)
    """Checks that are run, by the beginning of their names."""
    coarse: bool = field(default=False, kw_only=True)
    """Weights and moments are kept in float32, whatever the model was given in."""
    casts: bool = field(default=False, kw_only=True)
    """Under mixed precision weights lie in the smaller type; the whole state is that of the full one."""
    lacks: dict[str, str] = field(default_factory=dict, kw_only=True)
    """Precisions that cannot be had here, and what is said then."""
    expected: str = field(default="", kw_only=True)
    """Name of the strategy that comes of it; empty: the part of the name before a hyphen."""

    def has(self, check: str, size: int) -> bool:
        """Whether a check is run in a world of that size."""
        return size in self.sizes and check.startswith(self.only)

    @property
    def near(self) -> dict[str, float]:
        """How far results may be from those of one process."""
        return float32_bound() if self.coarse else EXACT

    def accelerator(self, size: int, **more: Any) -> Accelerator:
        """A new Accelerator of this process, in the process group that is there."""
        AcceleratorState._reset_state()
        GradientState._reset_state()
        return Accelerator(**{**self.make(size), **more})


def _sharded(**settings: Any) -> Callable[[int], dict[str, Any]]:
    return lambda _: {"fsdp_plugin": FullyShardedDataParallelPlugin(**settings)}


def _ddp(**settings: Any) -> Callable[[int], dict[str, Any]]:
    return lambda _: {"strategy": "ddp", "kwargs_handlers": [DistributedDataParallelKwargs(**settings)]}


def _tensor_parallel(size: int) -> dict[str, Any]:
    handler = TorchTensorParallelConfig(plan=PLAN)
    return {"parallelism_config": ParallelismConfig(tp_size=2, dp_shard_size=size // 2, tp_handler=handler)}


CASES = {
    case.name: case
    for case in (
        Case("single", lambda _: {"strategy": "single"}, (1,)),
        Case("ddp", _ddp(), allows_unused=False),
        Case("ddp-static", _ddp(static_graph=True, gradient_as_bucket_view=True, bucket_cap_mb=1), (2,), False),
        Case("ddp-unused", _ddp(find_unused_parameters=True), only="check_unused"),
        Case("toy", lambda _: {"strategy": "toy"}, (2,)),
        Case("fsdp", _sharded()),
        Case(
            "fsdp-class",
            _sharded(
                transformer_cls_names_to_wrap=["Block"],
                state_dict_type="FULL_STATE_DICT",
                activation_checkpointing=True,
                forward_prefetch=True,
                backward_prefetch="BACKWARD_PRE",
            ),
        ),
        Case("fsdp-size", _sharded(min_num_params=60, cpu_offload=True, reshard_after_forward=False), (2, 4)),
        Case("fsdp-name", _sharded(module_names_to_wrap="blocks.*,leave", sharding_strategy="SHARD_GRAD_OP"), (2,)),
        Case(
            "hybrid",
            lambda _: {"parallelism_config": ParallelismConfig(dp_replicate_size=2, dp_shard_size=2)},
            (4,),
            expected="fsdp",
        ),
        Case("tp", _tensor_parallel, (2, 4), expected="fsdp"),
    )
}


def _zero(stage: int, **settings: Any) -> Case:
    name = f"deepspeed-{stage}" + "".join(f"-{key.split('_')[1]}" for key in settings)
    return Case(
        name,
        lambda _: {"deepspeed_plugin": DeepSpeedPlugin(zero_stage=stage, **settings)},
        (1, 2),
        allows_unused=False,
        coarse=True,
        casts=True,
        lacks={"fp16": "Type fp16 is not supported on your device."},
    )


OTHERS = ("check_round_trip", "check_z_other_checkpoints")
DEEPSPEED_CASES = {
    case.name: case
    for case in (
        Case("ddp", _ddp(), (1, 2), only=OTHERS),
        Case("fsdp", _sharded(), (1, 2), only=OTHERS),
        *map(_zero, (1, 2, 3)),
        _zero(2, offload_optimizer_device="cpu"),
        _zero(3, offload_optimizer_device="cpu", offload_param_device="cpu"),
    )
}
"""What runs where DeepSpeed is installed: its stages, and others to exchange checkpoints with."""


def reference(
    steps: int, *, clip: float | None = None, spare: bool = False, dtype: torch.dtype = torch.float64
) -> tuple[Net, list[float], list[float]]:
    """The plain loop of one process: the model, its losses, and the norms of its gradients."""
    model = build(spare=spare).to(dtype)
    optimizer = optimizer_of(model)
    losses, norms = [], []
    for step in range(steps):
        x, y = (whole.to(dtype) for whole in batch_of(step))
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), clip if clip is not None else float("inf"))))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return model, losses, norms


def train(
    acc: Accelerator, model: Any, optimizer: Any, steps: range, *, clip: float | None = None, accumulate: int = 1
) -> tuple[list[float], list[float]]:
    """The same with an Accelerator, each share of a batch on the ranks that have it: losses and norms of gradients."""
    shares = acc._strategy.data_size * accumulate
    acc.gradient_accumulation_steps = accumulate
    losses, norms = [], []
    for step in steps:
        total = torch.zeros((), dtype=torch.float64, device=acc.device)
        for micro in range(accumulate):
            x, y = (whole[acc._strategy.data_rank * accumulate + micro :: shares] for whole in batch_of(step))
            x, y = x.to(acc.device), y.to(acc.device)
            with acc.accumulate(model):
                loss = nn.functional.mse_loss(model(x), y)
                acc.backward(loss)
                if clip is not None and acc.sync_gradients:
                    norms.append(float(acc.clip_grad_norm_(model.parameters(), clip)))
                optimizer.step()
                optimizer.zero_grad()
            total += loss.detach() / accumulate
        losses.append(float(acc.reduce(total, "mean")))
    acc.gradient_accumulation_steps = 1
    return losses, norms


def compare(acc: Accelerator, model: Any, wanted: nn.Module, near: dict[str, float] = EXACT) -> None:
    """Rank 0 has the whole state, and it is that of `wanted`, by the same names."""
    found, expected = acc.get_state_dict(model), wanted.state_dict()
    if acc.is_main_process:
        assert list(found) == list(expected)
        for name, value in expected.items():
            torch.testing.assert_close(found[name].cpu(), value, **near)
