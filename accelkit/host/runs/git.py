"""git as we use it: the folder's own repository whatever the caller's variables say, paths as they are, no setting that changes a diff."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from accelkit.host import process
from accelkit.host.errors import KitError

_OF_THE_CALLER: Final = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_COMMON_DIR",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_NAMESPACE",
    "GIT_PREFIX",
)
"""Set in hooks, where they mean the repository that the hook belongs to."""
_SETTINGS: Final = ("core.quotePath=false", "core.autocrlf=false", "diff.noprefix=false", "diff.mnemonicPrefix=false")


def run(folder: Path, *words: str, env: Mapping[str, str] | None = None, text: str | None = None) -> process.Finished:
    """Run a git command in `folder`. `text` goes to its standard input. Raises KitError where there is no git."""
    settings = [part for setting in _SETTINGS for part in ("-c", setting)]
    return process.run(["git", "-C", str(folder), *settings, *words], env=env, drop=_OF_THE_CALLER, text=text)


def ask(folder: Path, *words: str) -> str | None:
    """Output of a git command in `folder`; None when it fails or there is no git."""
    return ask_why(folder, *words)[0]


def ask_why(folder: Path, *words: str) -> tuple[str | None, str]:
    """As `ask`, and what git said beside it."""
    try:
        done = run(folder, *words)
    except KitError as error:
        return None, error.message
    return (done.stdout if done.code == 0 else None), done.stderr


def forget_worktrees(folder: Path) -> None:
    """Take every worktree in `folder` (which is about to go) off the list of its repository."""
    for pointer in folder.rglob(".git"):
        if pointer.is_file():
            listed = Path(pointer.read_text().removeprefix("gitdir:").strip())
            if listed.parent.name == "worktrees" and (listed / "gitdir").is_file():
                shutil.rmtree(listed, ignore_errors=True)


def must(folder: Path, *words: str, env: Mapping[str, str] | None = None, text: str | None = None) -> str:
    """Output of a git command in `folder`. Raises KitError when it fails."""
    done = run(folder, *words, env=env, text=text)
    if done.code != 0:
        raise KitError(f"git {words[0]} in {folder}: exit code {done.code}: {done.stderr.strip()}")
    return done.stdout
