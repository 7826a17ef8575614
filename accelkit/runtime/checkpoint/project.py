"""Where a project keeps its checkpoints, how they are numbered, and how many stay."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from accelkit.runtime.checkpoint import folder
from accelkit.runtime.errors import SettingError

_NUMBERED: Final = re.compile(r"checkpoint_(\d+)")


@dataclass
class ProjectConfiguration:
    """Where a project keeps what it produces."""

    project_dir: str | None = None
    logging_dir: str | None = None
    """Where trackers write; None: `project_dir`."""
    automatic_checkpoint_naming: bool = False
    """`save_state` names checkpoints by itself: `project_dir`/checkpoints/checkpoint_0, _1, ..."""
    total_limit: int | None = None
    """How many of them stay: the oldest goes when a new one is complete. None: all."""
    iteration: int = 0
    """The number of the next one; loading one goes on from the last that is there."""
    save_on_each_node: bool = False
    """The first rank of each node writes what else only rank 0 writes: for nodes that share no file system."""

    def __post_init__(self) -> None:
        """Refuse a limit that would leave nothing."""
        if self.total_limit is not None and self.total_limit < 1:
            raise SettingError(
                f"ProjectConfiguration(total_limit={self.total_limit}): must be at least 1",
                hint="leave it out to keep all checkpoints",
            )
        self.set_directories(self.project_dir)

    def set_directories(self, project_dir: str | None = None) -> None:
        """Choose the project's folder, which is that of trackers too where they have none."""
        self.project_dir = project_dir
        if self.logging_dir is None:
            self.logging_dir = project_dir

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints with automatic names. Raises SettingError without a `project_dir`."""
        if self.project_dir is None:
            raise SettingError(
                "automatic_checkpoint_naming needs a project_dir",
                hint='Accelerator(project_dir="...") or ProjectConfiguration(project_dir="...", ...)',
            )
        return Path(self.project_dir).expanduser() / "checkpoints"


def numbered(checkpoints: Path) -> dict[int, Path]:
    """Checkpoints with automatic names, by number, the oldest first."""
    if not checkpoints.is_dir():
        return {}
    found = {
        int(match[1]): path
        for path in checkpoints.iterdir()
        if (match := _NUMBERED.fullmatch(path.name)) and path.is_dir()
    }
    return dict(sorted(found.items()))


def next_target(config: ProjectConfiguration) -> Path:
    """Where the next checkpoint with an automatic name goes. Raises SettingError when there is one already."""
    target = config.checkpoints / f"checkpoint_{config.iteration}"
    if target.exists():
        upcoming = max(numbered(config.checkpoints), default=-1) + 1
        raise SettingError(
            f"{target} is there already, from an earlier run",
            hint=f"load_state() goes on from it; ProjectConfiguration(iteration={upcoming}) starts anew beside it",
        )
    return target


def newest(config: ProjectConfiguration) -> Path:
    """The checkpoint of the highest number. Raises SettingError when there is none."""
    found = numbered(config.checkpoints)
    if not found:
        raise SettingError(
            f"load_state: there is no checkpoint_N in {config.checkpoints}",
            hint="save_state makes them; load_state(FOLDER) loads any other",
        )
    return found[max(found)]


def prune(config: ProjectConfiguration, saved: int) -> None:
    """Remove the oldest checkpoints beyond the limit, out of that of number `saved` and those before it.

    What has a higher number is of another run, and no older.
    """
    if config.total_limit is None:
        return
    found = {number: path for number, path in numbered(config.checkpoints).items() if number <= saved}
    for number in list(found)[: -config.total_limit]:
        folder.delete(found[number])
