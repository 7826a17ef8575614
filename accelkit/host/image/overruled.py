"""Settings beside a bundle, which has decided already what is in the image.

Flags and KIT_* variables are set for this very build: they are refused. What stands in a file is meant for other builds too, and must not
keep anybody from building the bundle that they got: what says something else than the bundle is told, and has no effect.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from accelkit.host.errors import UsageError
from accelkit.host.image import requirements
from accelkit.host.image.catalogue import Build
from accelkit.host.image.lockfile import LockedImage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from accelkit.host.config.loading import Origin, Resolved
    from accelkit.host.config.model import BuildConfig

_CHOICES: Final = ("torch", "python", "cuda", "variant", "base", "platform", "apt")
_FILES: Final = ("requirements", "project")
_PLACES: Final = ("wheels", "index_url", "torch_index")
_FETCHING: Final = (*_PLACES, "ca", "network")
"""What says where files come from, and how: beside a bundle nothing is fetched, whatever it says."""


def refuse(resolved: "Resolved", *, locked: bool) -> None:
    """Raise UsageError that names every flag and every variable which has no say beside a bundle."""
    without = {"flag": (*_CHOICES, *_FILES, *_PLACES), "variable": (*_CHOICES, *_FILES)}
    typed = [origin.text for name, (_, origin) in _given(resolved).items() if name in without.get(origin.kind, ())]
    typed += ["--locked"] * locked
    if typed:
        raise UsageError(
            f"--from-bundle with {', '.join(typed)}: the bundle says what is in the image", hint="leave one of them out"
        )


def told(resolved: "Resolved", locked: LockedImage, build: Build, folder: Path) -> list[str]:
    """A sentence for each setting of a file that says something else than the bundle of this lock, with this build of torch."""
    given, has = _given(resolved), _in_bundle(locked, build)
    found = [
        f"{origin.text}: build.{name} is {_words(value)}, in the bundle it is {_words(has[name])}"
        for name, (value, origin) in given.items()
        if name in _CHOICES and _words(value) != _words(has[name])
    ]
    files = [given[name][1].text for name in _FILES if name in given]
    if files and not _are_those(resolved.config.build, folder, locked):
        made_with = ", ".join(sorted(locked.inputs)) or "none"
        found.append(f"{', '.join(files)}: other requirements than those that the bundle was made with ({made_with})")
    return found


def of_fetching(resolved: "Resolved") -> list[str]:
    """Places of settings that could matter only if something was fetched."""
    return [
        f"{origin.text}: build.{name}"
        for name, (value, origin) in _given(resolved).items()
        if name in _FETCHING and (name, value) != ("network", "none")
    ]


def _given(resolved: "Resolved") -> "Mapping[str, tuple[Any, Origin]]":
    """Name -> value and origin, of the settings of builds that are set anywhere."""
    found = {key.partition("."): pair for key, pair in resolved.values().items() if pair[0]}
    return {name: pair for (section, _, name), pair in found.items() if section == "build"}


def _in_bundle(locked: LockedImage, build: Build) -> dict[str, Any]:
    return {
        "torch": locked.torch, "python": locked.python, "cuda": build.cuda, "variant": locked.build,
        "base": locked.base.name, "platform": locked.platform, "apt": list(locked.apt),
    }  # fmt: skip


def _are_those(config: "BuildConfig", folder: Path, locked: LockedImage) -> bool:
    """Whether the requirements that the config names have the contents of those that were locked."""
    try:
        found = requirements.gather(config.requirements, config.project, folder)
    except UsageError:
        return False
    return sorted(one.digest for one in found) == sorted(locked.inputs.values())


def _words(value: Any) -> str:
    return (" ".join(sorted(set(value))) if isinstance(value, list) else str(value or "")) or "none"
