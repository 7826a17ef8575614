"""Problems of a configuration: all of them at once, each with its place."""

from accelkit.contract.data import data
from accelkit.host.errors import UsageError


@data
class Problem:
    """One thing that is wrong."""

    where: str
    """A file with its line (kit.yaml:7), a flag, or a variable."""
    key: str
    """Dotted; empty when it is about the place itself."""
    what: str
    allowed: str
    """What is allowed, or what was probably meant; may be empty."""

    def __str__(self) -> str:
        """One line."""
        named = self.key not in ("", self.where)
        head = f"{self.where}: {self.key} {self.what}" if named else f"{self.where}: {self.what}"
        return (
            f"{head}; {'' if self.allowed.startswith('did you') else 'allowed: '}{self.allowed}"
            if self.allowed
            else head
        )


class ConfigError(UsageError):
    """One or more problems of the configuration."""

    def __init__(self, problems: list[Problem]) -> None:
        """`problems`: at least one."""
        lines = [str(p) for p in sorted(problems, key=_place)]
        text = lines[0] if len(lines) == 1 else f"{len(lines)} problems in the configuration\n  " + "\n  ".join(lines)
        super().__init__(text)
        self.problems = problems


def _place(problem: Problem) -> tuple[str, int]:
    """File and line, by which problems are told."""
    file, _, line = problem.where.rpartition(":")
    return (file, int(line)) if line.isdigit() else (problem.where, 0)
