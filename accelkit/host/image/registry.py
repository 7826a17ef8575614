"""The digest of a base image that is not here yet, asked of its registry."""

import re
from dataclasses import replace
from typing import Final

from accelkit.host import process
from accelkit.host.errors import BuildError
from accelkit.host.image.inputs import Inputs

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


def pinned(inputs: Inputs) -> Inputs:
    """The inputs with a base that is known by digest. Raises BuildError where neither the engine nor the registry has it."""
    if inputs.base.digest:
        return inputs
    name = inputs.base.name
    done = process.run(
        ["docker", "buildx", "imagetools", "inspect", name, "--format", "{{.Manifest.Digest}}"], timeout=60
    )
    found = _DIGEST.search(done.stdout)
    if done.code or found is None:
        raise BuildError(
            f"base image {name}: it is not here, and its registry does not answer: {done.stderr.strip()}",
            hint="docker pull it, or name a base of your own with --base",
        )
    return replace(inputs, base=replace(inputs.base, digest=found[0]))
