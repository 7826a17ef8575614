"""Where a built image goes: the engine, a registry, or a file."""

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from accelkit.contract.data import data
from accelkit.host import paths, process
from accelkit.host.errors import BuildError, UsageError
from accelkit.host.image import digests

KINDS: Final = ("tar", "oci")
_HOST: Final = r"(?:\[[0-9A-Fa-f:]+\]|[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?)(?::[0-9]+)?"
_PART: Final = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_TAG: Final = re.compile(rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?")
"""What a registry and the engine take as a reference: HOST:PORT/NAME:TAG."""


@data
class Output:
    """A place for the image. By default the engine that builds."""

    push: bool = False
    """To the registry that its tag names, too."""
    file: Path | None = None
    """An archive instead of the engine."""
    oci: bool = False
    """The archive is an OCI layout, else what `docker load` takes."""

    @property
    def to_engine(self) -> bool:
        """Whether the engine has the image afterwards."""
        return self.file is None

    @property
    def place(self) -> str:
        """For people."""
        return str(self.file or "")

    @property
    def size(self) -> int:
        """Bytes of the archive."""
        return self.file.stat().st_size if self.file and self.file.exists() else 0

    @property
    def digests(self) -> dict[str, str]:
        """The archive by its name, and its sha256."""
        return {self.file.name: digests.of_file(self.file)} if self.file else {}

    @contextmanager
    def made(self, tag: str, *, reproducible: bool) -> Iterator[list[str]]:
        """Options of buildx for one build; what it wrote goes to its place when the block ends well, and is gone when it does not.

        With rewritten times the engine cannot take the image directly: it loads an archive afterwards. Every archive is written in a
        folder of this build's own, so that no other build's is taken for it, and a file of the user's is replaced whole or not at all.
        Raises BuildError where the engine refuses the archive.
        """
        if self.file is None and not reproducible:
            yield self.words(tag, None, reproducible=False)
            return
        parent = self.file.parent if self.file else paths.cache_home() / "builds"
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".accelkit-image-", dir=parent) as name:
            archive = Path(name) / "image.tar"
            yield self.words(tag, archive, reproducible=reproducible)
            if self.file is None:
                _docker("load", "--quiet", "--input", str(archive))
            else:
                os.replace(archive, self.file)

    def words(self, tag: str, archive: Path | None, *, reproducible: bool) -> list[str]:
        """Options of buildx that write into `archive`; None: straight into the engine."""
        if archive is None:
            return ["--load"]
        kind = "oci" if self.oci else "docker"
        times = ",rewrite-timestamp=true" if reproducible else ""
        return [f"--output=type={kind},name={tag}{times},{csv_field(f'dest={archive}')}"]

    def shown(self, tag: str, *, reproducible: bool) -> list[str]:
        """The same for people, with the file's own place."""
        archive = self.file or (Path("FILE_THAT_IS_LOADED") if reproducible else None)
        return self.words(tag, archive, reproducible=reproducible)


def push(tag: str) -> None:
    """Push an image that the engine has to the registry that its tag names. Raises BuildError with Docker's words."""
    _docker("push", "--quiet", tag)


def csv_field(text: str) -> str:
    """A field of the comma-separated options of buildx, quoted where it holds a comma or a quote itself."""
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\n\r') else text


def check_tag(tag: str) -> str:
    """The tag of `--tag`. Raises UsageError for one that no engine takes, also an empty one: a variable that is not set."""
    if not _TAG.fullmatch(tag):
        raise UsageError(
            f"--tag {tag!r}: not a tag",
            hint="allowed is [HOST[:PORT]/]NAME[:TAG], the name in small letters: registry.example/team/cpu:1",
        )
    return tag


def parse(text: str | None, *, push: bool, folder: Path, name: str) -> Output:
    """An output of `--output` (tar, oci, each with `=FILE` where it is to lie elsewhere) and `--push`. Raises UsageError."""
    if text is None:
        return Output(push=push)
    kind, _, file = text.partition("=")
    if kind not in KINDS:
        raise UsageError(f"--output {text}: allowed are tar, oci, tar=FILE, oci=FILE")
    if push:
        raise UsageError("--output with --push: an archive is not pushed", hint="leave one of them out")
    usual = {"tar": f"accelkit-{name}.tar", "oci": f"accelkit-{name}.oci.tar"}[kind]
    path = (folder / Path(file or usual).expanduser()).resolve()
    if not path.parent.is_dir():
        raise UsageError(f"--output {text}: {path.parent} is not a folder")
    if path.exists() and not path.is_file():
        raise UsageError(
            f"--output {text}: {path} is there, and no file", hint="name a file: it is replaced as a whole"
        )
    return Output(file=path, oci=kind == "oci")


def _docker(*words: str) -> None:
    done = process.run(["docker", *words])
    if done.code:
        raise BuildError(f"docker {words[0]}: {done.stderr.strip() or done.stdout.strip()}")
