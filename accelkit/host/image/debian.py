"""Which Debian packages `--apt` means on a base image: asked of the base's own apt, in a container."""

import re
from typing import Final

from accelkit.host import process
from accelkit.host.errors import BuildError, UsageError
from accelkit.host.image.inputs import Inputs
from accelkit.host.image.lockfile import DebianPackage
from accelkit.host.image.output import csv_field

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9+.-]+(=[A-Za-z0-9.+:~-]+)?")
_LINE: Final = re.compile(r"^'[^']*' (?P<file>\S+) \d+ SHA256:(?P<sha256>[0-9a-f]{64})$", re.MULTILINE)
_SCRIPT: Final = (
    "if [ -f /ca ]; then echo 'Acquire::https::CAInfo \"/ca\";' >/etc/apt/apt.conf.d/99accelkit; fi; "
    "apt-get update -qq && apt-get install -qq --print-uris --no-install-recommends -o Acquire::ForceHash=SHA256 "
)


def check(names: tuple[str, ...]) -> None:
    """Raise UsageError for what is no name of a Debian package."""
    for name in names:
        if not _NAME.fullmatch(name) or name.endswith("-"):  # which apt would take for one that is to go
            raise UsageError(f"--apt {name}: not a Debian package", hint="allowed are NAME and NAME=VERSION")


def resolve(inputs: Inputs) -> dict[str, DebianPackage]:
    """The packages asked for and all that they need beyond the base. Raises BuildError with apt's words."""
    if not inputs.apt:
        return {}
    network = ["--network", inputs.network] if inputs.network else []
    ca = ["--mount", f"type=bind,{csv_field(f'source={inputs.ca}')},target=/ca,readonly"] if inputs.ca else []
    proxies = [word for name in inputs.proxies for word in ("--env", name)]
    done = process.run(
        ["docker", "run", "--rm", "--user", "0", f"--platform={inputs.platform}", *network, *ca, *proxies, inputs.base.name,
         "sh", "-c", _SCRIPT + " ".join(inputs.apt)],
    )  # fmt: skip
    if done.code:
        raise BuildError(f"--apt {' '.join(inputs.apt)}: {done.stderr.strip() or done.stdout.strip()}")
    return parse(done.stdout)


def parse(listing: str) -> dict[str, DebianPackage]:
    """Packages in what `apt-get --print-uris` prints."""
    found = {}
    for match in _LINE.finditer(listing):
        file = match["file"].replace("%3a", ":").replace("%3A", ":")
        name, version, _ = file.removesuffix(".deb").split("_")
        found[name] = DebianPackage(version=version, file=file.replace(":", "%3a"), sha256=match["sha256"])
    return found
