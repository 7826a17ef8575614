"""BuildKit's plain progress, read: which steps ran and how long they took, and why a build failed. Pure."""

import re
from typing import Final

from accelkit.contract.data import data
from accelkit.host.image.lockfile import LockedImage

_TAIL: Final = 15
_VERTEX: Final = re.compile(r"#(\d+) (.*)")
_SCRIPT: Final = re.compile(r"sh /shared/(?P<script>[a-z-]+)\.sh ?(?:/(?P<file>[a-z]+)\.txt)?")
_EXPECTED: Final = re.compile(r"Expected sha256 ([0-9a-f]{64})")
_GOT: Final = re.compile(r"Got\s+([0-9a-f]{64})")


@data
class Step:
    """A step of the Dockerfile that fetches or installs."""

    name: str
    """For example `install torch`."""
    seconds: float | None
    """None: taken from the cache."""


def steps(lines: list[str]) -> tuple[Step, ...]:
    """Steps in the order of the Dockerfile's stages, as BuildKit reported them."""
    named: dict[str, str] = {}
    ended: dict[str, float | None] = {}
    for line in lines:
        match = _VERTEX.match(line)
        if match is None:
            continue
        number, words = match.groups()
        script = _SCRIPT.search(words)
        if words.startswith("[") and script:
            named[number] = _name(script)
        elif words.startswith("DONE "):
            ended[number] = float(words.split()[1].rstrip("s"))
        elif words.startswith("CACHED"):
            ended[number] = None
    return tuple(Step(name=name, seconds=ended[number]) for number, name in named.items() if number in ended)


def begun(line: str) -> str | None:
    """The step that a line says has begun, in few words; None for other lines and for BuildKit's own housekeeping."""
    match = _VERTEX.match(line)
    if match is None or not match[2].startswith("[") or match[2].startswith(("[internal]", "[context")):
        return None
    stage, _, words = match[2].partition("] ")
    script = _SCRIPT.search(words)
    return f"{stage}] {_name(script) if script else words[:80]}"


def _name(script: "re.Match[str]") -> str:
    return f"{script['script'].replace('-debian', '')} {script['file'] or 'debian'}"


def failure(lines: list[str], locked: LockedImage) -> str:
    """The step that failed and its last lines; a file that is not the locked one is named."""
    failed = next((line for line in reversed(lines) if line.startswith("#") and " ERROR: " in line), "")
    number = failed.partition(" ")[0]
    own = [line for line in lines if number and line.startswith(f"{number} ")]
    step = next((line.partition(" ")[2] for line in own if line.partition(" ")[2].startswith("[")), "")
    said = own[1:] if step else [line for line in lines if line.strip()]
    words = [line for line in said if line != failed][-_TAIL:]
    reason = failed or next((line for line in reversed(lines) if line.startswith("ERROR: ")), "")
    shown = [*([f"step: {step}"] if step else []), *words, *([reason] if reason else [])]
    return "\n  ".join([_head("\n".join(own), locked), *shown])


def _head(text: str, locked: LockedImage) -> str:
    expected, got = _EXPECTED.search(text), _GOT.search(text)
    names = {p.sha256: name for name, p in locked.packages.items()}
    if expected and got and expected[1] in names:
        name = names[expected[1]]
        file = locked.packages[name].file
        return f"{name}: {file} is not the locked file (its sha256 is {got[1]}, locked is {expected[1]})"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return "an index has a certificate that the build does not trust: --ca FILE names those that it is to trust"
    return "the build failed"
