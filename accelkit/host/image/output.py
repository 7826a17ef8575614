"""Where a built image goes: the engine, a registry, or a file."""

from pathlib import Path
from typing import Final

from accelkit.contract.data import data
from accelkit.host import paths, process
from accelkit.host.errors import BuildError, UsageError

KINDS: Final = ("tar", "oci")


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

    def words(self, tag: str, *, reproducible: bool) -> list[str]:
        """Options of buildx. With rewritten times the engine cannot take the image directly: it loads an archive afterwards."""
        if self.file is None and not reproducible:
            return ["--load"]
        kind = "oci" if self.oci else "docker"
        times = ",rewrite-timestamp=true" if reproducible else ""
        return [f"--output=type={kind},name={tag}{times},dest={self.file or self._archive(tag)}"]

    def finish(self, tag: str) -> None:
        """Load an archive that was made for the engine; push. Raises BuildError."""
        archive = self._archive(tag)
        if self.file is None and archive.exists():
            try:
                _docker("load", "--quiet", "--input", str(archive))
            finally:
                archive.unlink(missing_ok=True)
        if self.push:
            _docker("push", "--quiet", tag)

    def _archive(self, tag: str) -> Path:
        folder = paths.cache_home() / "builds"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{tag.replace('/', '_').replace(':', '_')}.tar"


def parse(text: str | None, *, push: bool, folder: Path, name: str) -> Output:
    """An output of `--output` (tar, oci, each with `=FILE` where it is to lie elsewhere) and `--push`. Raises UsageError."""
    if text is None:
        return Output(push=push)
    kind, _, file = text.partition("=")
    if kind not in KINDS:
        raise UsageError(f"--output {text}: allowed are tar, oci, tar=FILE, oci=FILE")
    if push:
        raise UsageError("--output with --push: an archive is not pushed", hint="leave one of them out")
    path = (folder / Path(file or f"accelkit-{name}.{kind}.tar").expanduser()).resolve()
    if not path.parent.is_dir():
        raise UsageError(f"--output {text}: {path.parent} is not a folder")
    return Output(file=path, oci=kind == "oci")


def _docker(*words: str) -> None:
    done = process.run(["docker", *words])
    if done.code:
        raise BuildError(f"docker {words[0]}: {done.stderr.strip() or done.stdout.strip()}")
