"""What a build replaces stays, under a tag of its own: runs that used that image can still be reproduced.

One engine has one `accelkit-cpu:latest`, and every project of its user may build it anew. An engine that keeps its images in containerd
forgets an image with its last tag.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from accelkit.contract import names
from accelkit.host.engine import client as engine

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.images import Image


def kept_tag(tag: str, image_id: str) -> str:
    """The tag that the image of `tag` keeps when a build replaces it: its repository and twelve digits of its ID."""
    return f"{_repository(tag)}:{image_id.removeprefix('sha256:')[:12]}"


@contextmanager
def keeping(client: "DockerClient", tag: str, image_id: str | None) -> Iterator[str | None]:
    """Hold the image that has `tag` now (None: there is none) while something is built; yields what it will be called if it is replaced.

    Where `tag` still is that image at the end (a build that failed, or gave the same), nothing stays.
    """
    if image_id is None:
        yield None
        return
    name = kept_tag(tag, image_id)
    with engine.engine_errors(f"tagging {name}"):
        had = _find(client, name) is not None
        client.images.get(image_id).tag(name)
    try:
        yield name
    finally:
        with engine.engine_errors(f"looking at {tag}"):
            now = _find(client, tag)
            if not had and now is not None and now.id == image_id:
                client.images.remove(name, noprune=True)


def find(client: "DockerClient", tag: str, digest: str) -> "Image | None":
    """An image of the same repository as `tag` that is the build of this digest."""
    with engine.engine_errors("looking for an earlier build"):
        found = client.images.list(_repository(tag), filters={"label": f"{names.LABEL_BUILD}={digest}"})
        return found[0] if found else None


def _repository(tag: str) -> str:
    """A reference less its tag; the port of a registry stays."""
    repository, colon, last = tag.rpartition(":")
    return repository if colon and "/" not in last else tag


def _find(client: "DockerClient", tag: str) -> "Image | None":
    from docker.errors import NotFound

    try:
        return client.images.get(tag)
    except NotFound:
        return None
