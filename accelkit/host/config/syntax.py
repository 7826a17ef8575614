"""The text forms of settings: sizes, durations, GPUs, limits, users, mounts, variables, secrets.

Pure; each parser raises ValueError that says what is allowed.
"""

import difflib
import re
from typing import Final, Literal, NamedTuple

from accelkit.contract.strategies import STRATEGIES

_SIZE_UNITS: Final = {
    "": 1, "b": 1,
    "k": 1 << 10, "ki": 1 << 10, "kib": 1 << 10, "kb": 10**3,
    "m": 1 << 20, "mi": 1 << 20, "mib": 1 << 20, "mb": 10**6,
    "g": 1 << 30, "gi": 1 << 30, "gib": 1 << 30, "gb": 10**9,
    "t": 1 << 40, "ti": 1 << 40, "tib": 1 << 40, "tb": 10**12,
}  # fmt: skip
_DURATION: Final = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")
_LONGEST: Final = 10 * 365 * 24 * 3600
"""Seconds; far longer waits are more than a system's clock can count."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PATTERN: Final = re.compile(r"[A-Za-z_*?\[][A-Za-z0-9_*?\[\]!-]*")
_IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*(?:@sha256:[0-9a-f]{64})?")
_SECRET: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


_LIMITS: Final = (
    "as", "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc", "rss", "rtprio", "rttime",
    "sigpending", "stack",
)  # fmt: skip


class UlimitSyntax(NamedTuple):
    """A limit: its name and two values, -1 for unlimited."""

    name: str
    soft: int
    hard: int


def parse_size(text: str) -> int:
    """Bytes. k, m, g, t and KiB, MiB, ... are powers of 1024 (as Docker reads them); KB, MB, ... are powers of 1000."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    unit = match[2].lower() if match else None
    if match is None or unit not in _SIZE_UNITS or float(match[1]) <= 0:
        raise ValueError(f"{text!r} is not a size; allowed is a number with k, m, g, t, KiB, MB, ..., for example 4g")
    return int(float(match[1]) * _SIZE_UNITS[unit])


def parse_duration(text: str) -> float:
    """Seconds, of 90s, 15m, 4h, 1h30m, or a plain number of seconds."""
    bare = text.strip()
    if re.fullmatch(r"\d+(?:\.\d+)?", bare):
        bare += "s"
    match = _DURATION.fullmatch(bare)
    parts = [float(p) for p in match.groups(default="0")] if match and bare else [0.0]
    seconds = sum(p * f for p, f in zip(parts, (3600, 60, 1), strict=False))
    if seconds <= 0:
        raise ValueError(f"{text!r} is not a duration; allowed are 90s, 15m, 4h, 1h30m")
    if seconds > _LONGEST:
        raise ValueError(f"{text!r} is too long; allowed is up to {_LONGEST // 3600}h")
    return seconds


def parse_cpus(text: str) -> float:
    """A number of CPUs above 0, fractions allowed."""
    if not re.fullmatch(r"\d+(?:\.\d+)?", text.strip()) or float(text) <= 0:
        raise ValueError(f"{text!r} is not a number of CPUs; allowed are numbers above 0, for example 2 or 1.5")
    return float(text)


def parse_gpus(text: str) -> Literal["all"] | int | tuple[str, ...]:
    """The word all, a count (0 for none), or a tuple of indices or UUIDs. One index alone is written with a comma: `0,`."""
    bare = text.strip()
    if bare == "all":
        return "all"
    if bare == "none":
        return 0
    if bare.isdigit():
        return int(bare)
    items = tuple(part.strip() for part in bare.split(",") if part.strip())
    if not items or any(not re.fullmatch(r"\d+|(GPU|MIG)-[0-9A-Za-z-]+", item) for item in items):
        raise ValueError(f"{text!r}: allowed are all, none, a count, or a list of indices or UUIDs such as 0,2")
    if len(set(items)) != len(items):
        raise ValueError(f"{text!r}: a GPU is named twice")
    return items


def parse_ulimit(text: str) -> UlimitSyntax:
    """NAME=SOFT[:HARD]; -1 or unlimited for no limit; HARD defaults to SOFT."""
    match = re.fullmatch(r"([a-z]+)=(-1|unlimited|\d+)(?::(-1|unlimited|\d+))?", text.strip())
    if match is None:
        raise ValueError(
            f"{text!r} is not a limit; allowed is NAME=SOFT[:HARD], for example nofile=65536 or memlock=-1"
        )
    if match[1] not in _LIMITS:
        near = difflib.get_close_matches(match[1], _LIMITS, n=1)
        words = f"did you mean {near[0]}?" if near else f"allowed are {', '.join(_LIMITS)}"
        raise ValueError(f"{text!r}: no limit is called {match[1]}; {words}")
    soft, hard = (-1 if v == "unlimited" else int(v) for v in (match[2], match[3] or match[2]))
    if hard != -1 and (soft == -1 or soft > hard):
        raise ValueError(f"{text!r}: the soft limit is above the hard one")
    return UlimitSyntax(match[1], soft, hard)


def parse_user(text: str) -> tuple[int, int | None]:
    """UID and GID; the GID is None when only UID is given."""
    match = re.fullmatch(r"(\d+)(?::(\d+))?", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a user; allowed is UID[:GID], in numbers")
    return int(match[1]), int(match[2]) if match[2] else None


def parse_mount(text: str) -> tuple[str, str | None, bool]:
    """Source, target (None: the same place), and whether it is read-only (the default)."""
    parts = text.split(":")
    mode = parts.pop() if len(parts) > 1 and parts[-1] in ("ro", "rw") else "ro"
    if not 1 <= len(parts) <= 2 or not all(parts):
        raise ValueError(f"{text!r} is not a mount; allowed is SOURCE[:TARGET][:ro|rw]")
    target = parts[1] if len(parts) == 2 else None
    if target is not None and not target.startswith("/"):
        raise ValueError(f"{text!r}: the target must be an absolute path")
    return parts[0], target, mode == "ro"


def parse_env(text: str) -> tuple[str, str | None]:
    """Name and value; the value is None for NAME or a pattern, which take the caller's."""
    name, has_value, value = text.partition("=")
    allowed = _NAME if has_value else _PATTERN
    if not allowed.fullmatch(name):
        raise ValueError(f"{text!r} is not a variable; allowed are NAME=VALUE, NAME, or a pattern such as NCCL_*")
    return name, value if has_value else None


def parse_secret(text: str) -> tuple[str, str | None]:
    """Name and file; the file is None when the value is that of the variable of the same name."""
    name, has_file, file = text.partition("=")
    if not _SECRET.fullmatch(name) or (has_file and not file):
        raise ValueError(f"{name!r} is not a secret; allowed are NAME=FILE, or NAME for a variable's value")
    return name, file if has_file else None


def parse_strategy(text: str) -> str:
    """The name of a strategy."""
    if text not in STRATEGIES:
        raise ValueError(f"is {text!r}; allowed: one of {', '.join(STRATEGIES)}")
    return text


def parse_image(text: str) -> str:
    """An image's name, tag, ID or digest, as engines take it."""
    if not _IMAGE.fullmatch(text):
        raise ValueError(f"is {text!r}; allowed: an image's name (cpu), tag (mine:1), ID or digest (sha256:...)")
    return text


PARSERS: Final = {
    "size": parse_size, "duration": parse_duration, "cpus": parse_cpus, "gpus": parse_gpus, "ulimit": parse_ulimit,
    "user": parse_user, "mount": parse_mount, "env": parse_env, "secret": parse_secret,
    "strategy": parse_strategy, "image": parse_image,
}  # fmt: skip
"""Name of a syntax in model.Option -> its parser."""
