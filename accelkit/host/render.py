"""How kit prints: its own words to standard error, results (tables, JSON, the ranks' lines) to standard output.

Plain text; colours only on a terminal and without NO_COLOR. rich is imported by the commands that draw tables or progress, never here.
"""

import os
import re
import sys
import traceback
from collections.abc import Sequence
from typing import Any, Final

from accelkit.host.errors import KitError

_verbosity = 0
_SECRET_WORDS: Final = re.compile(
    r"(?:^|_)(?:SECRETS?|TOKENS?|PASS(?:WORD|WD|PHRASE)?|CREDENTIALS?|(?:API|ACCESS|PRIVATE)?KEYS?|AUTH)(?:_|$)",
    re.IGNORECASE,
)
_LOGIN: Final = re.compile(r"(\w://)[^/@\s]+@")
MASK: Final = "***"


def set_verbosity(level: int) -> None:
    """-1 and below: only errors; 0: notes; 1 and above: details; 2: tracebacks of kit itself."""
    global _verbosity  # noqa: PLW0603  (one process, one terminal)
    _verbosity = level


def verbosity() -> int:
    """The level that was set."""
    return _verbosity


def colour(stream: object = None) -> bool:
    """Whether to colour what goes to `stream` (default: standard error)."""
    target = stream or sys.stderr
    return "NO_COLOR" not in os.environ and bool(getattr(target, "isatty", lambda: False)())


def paint(text: str, code: str, stream: object = None) -> str:
    """`text` in an ANSI style ("31" red, "33" yellow, "1" bold) where `stream` (default: standard error) takes colours."""
    return f"\x1b[{code}m{text}\x1b[0m" if colour(stream) else text


def note(message: str) -> None:
    """A line of kit's own, unless -q."""
    if _verbosity >= 0:
        _write(f"kit: {message}")


def detail(message: str) -> None:
    """A line of kit's own, only with -v."""
    if _verbosity >= 1:
        _write(f"kit: {message}")


def warn(message: str) -> None:
    """A warning, also with -q."""
    _write(f"kit: {paint('warning', '33')}: {message}")


def error(problem: KitError) -> None:
    """An error's message and hint; with -vv its traceback too."""
    if _verbosity >= 2:
        _write("".join(traceback.format_exception(problem)).rstrip())
    _write(f"kit: {paint('error', '31')}: {problem.message}")
    if problem.hint:
        _write(f"     {problem.hint}")


def problem(text: str) -> None:
    """Several lines about something that failed, also with -q."""
    _write(f"kit: {paint('failed', '31')}: {text}")


def failed(shown: str, summary: str) -> None:
    """A run that failed: what its first failure printed, if anything, and then in a few lines what became of it. Also with -q."""
    if shown:
        _write(shown)
    problem(summary)


def out(text: str) -> None:
    """A result, to standard output."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def masked(data: Any) -> Any:
    """`data` (plain JSON) as it may be shown: no logins in URLs, no values of variables whose names say that they are secret."""
    if isinstance(data, dict):
        return {name: _masked_value(name, value) for name, value in data.items()}
    if isinstance(data, list):
        return [masked(value) for value in data]
    if not isinstance(data, str):
        return data
    name, assigned, value = data.partition("=")
    return (
        f"{name}={_masked_value(name, value)}" if assigned and name.isidentifier() else _LOGIN.sub(rf"\1{MASK}@", data)
    )


def _masked_value(name: str, value: Any) -> Any:
    return MASK if isinstance(value, str) and value and _SECRET_WORDS.search(name) else masked(value)


def on_a_line(text: str) -> str:
    """A name that somebody else chose, as it can stand in a line: what would break or colour the line is written out."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns wide enough for their cells, two spaces apart; no trailing blanks."""
    cells = [[on_a_line(str(c)) for c in row] for row in [headers, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(headers))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells)


def _write(line: str) -> None:
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):  # a reader that has gone, a full disk, a stream that is closed: nowhere to say it
        return
