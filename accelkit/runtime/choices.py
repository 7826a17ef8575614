"""What a script says and what the launch says, made one: an explicit argument wins, and one warning names all that it overrules."""

import warnings
from dataclasses import dataclass
from typing import Any

from accelkit.runtime.env import Defaults
from accelkit.runtime.errors import SettingError


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The settings in force."""

    strategy: str
    precision: str
    grad_accum_steps: int
    seed: int | None
    deterministic: bool


def choose(
    defaults: Defaults,
    *,
    strategy: str | None,
    precision: str | None,
    grad_accum_steps: int | None,
    seed: int | None,
    deterministic: bool | None,
    warn: bool,
) -> Choices:
    """Merge the arguments of a script (None: not given) with the launch's settings. Warns once where they differ, with `warn`."""
    told = defaults.settings
    given: dict[str, tuple[str, Any, Any]] = {
        "strategy": ("strategy", strategy, None if told.strategy == "auto" else told.strategy),
        "precision": ("mixed_precision", precision, told.precision),
        "grad_accum_steps": ("gradient_accumulation_steps", grad_accum_steps, told.grad_accum_steps),
        "seed": ("seed", seed, told.seed),
        "deterministic": ("deterministic", deterministic, told.deterministic or None),
    }
    if warn:
        _warn(list(given.values()), defaults.source)
    merged = {key: launched if explicit is None else explicit for key, (_, explicit, launched) in given.items()}
    steps = 1 if merged["grad_accum_steps"] is None else merged["grad_accum_steps"]
    if steps < 1:
        raise SettingError(f"gradient_accumulation_steps={steps}: must be at least 1")
    certain = bool(merged["deterministic"])
    return Choices(
        strategy=merged["strategy"] or "auto",
        precision=merged["precision"] or "no",
        grad_accum_steps=steps,
        seed=0 if certain and merged["seed"] is None else merged["seed"],
        deterministic=certain,
    )


def _warn(given: list[tuple[str, Any, Any]], source: str) -> None:
    """One warning that names every setting in which the script and the launch differ."""
    overruled = [
        f"{name}={explicit!r} (not {launched!r})"
        for name, explicit, launched in given
        if None not in (explicit, launched) and explicit != launched
    ]
    if overruled:
        message = f"the script's own {', '.join(overruled)} wins over what {source} says"
        warnings.warn(message, stacklevel=5)
