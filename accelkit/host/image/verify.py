"""`kit build --verify`: is the image what its inputs give? It is built again without any cache, and compared bit for bit."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from accelkit.host import process
from accelkit.host.engine import client as engine
from accelkit.host.errors import BuildError, DriftError
from accelkit.host.image import archive, build
from accelkit.host.image.build import BuildPlan
from accelkit.host.image.output import Output


def verify(decided: BuildPlan, show: Callable[[str], None]) -> str:
    """Build `decided` again and compare it with the image that has its tag. Returns the ID that the image has here.

    Raises DriftError that names the first file that differs, and BuildError where there is no image to compare with.
    """
    with tempfile.TemporaryDirectory(prefix="accelkit-verify-") as name:
        here, again = Path(name) / "here.tar", Path(name) / "again.tar"
        done = process.run(["docker", "save", "--output", str(here), decided.tag])
        if done.code:
            raise BuildError(f"{decided.tag}: {done.stderr.strip()}", hint="build it first, with --reproducible")
        options = replace(decided.options, no_cache=True, reproducible=True, output=Output(file=again))
        build.build(replace(decided, options=options), show, force=True)
        found = archive.first_difference(here, again)
        if found is not None:
            raise DriftError(
                f"{decided.tag}: built again, it is another image: {found}",
                hint="was it built with --reproducible, and of the same lock?",
            )
    return engine.find_image(engine.connect(), decided.tag).id
