"""Archives of images compared: the first file that differs is named, and the same image is the same; bundles whose files were changed."""

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from accelkit.host.errors import BuildError, DriftError, KitError, UsageError
from accelkit.host.image import archive, bundle, progress
from accelkit.host.image.lockfile import Lock, LockedBase, LockedImage, Package, write
from tests.host.image.test_lock import asked, locked
from tests.support.kit import kit

Files = dict[str, tuple[bytes, int, int]]
"""Path -> content, mode, time."""

PLAIN: Files = {"opt/a": (b"a", 0o644, 1), "opt/b": (b"b", 0o755, 1)}


def layer(files: Files) -> bytes:
    """A layer, packed."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as packed:
        for name, (content, mode, time) in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime = len(content), mode, time
            packed.addfile(info, io.BytesIO(content))
    data = bytearray(buffer.getvalue())
    data[4:8] = bytes(4)  # gzip's own time
    return bytes(data)


def image(path: Path, layers: list[bytes], config: dict[str, Any] | None = None, *, nested: bool = False) -> Path:
    """An archive with one image in it."""
    blobs: dict[str, bytes] = {}

    def blob(data: bytes) -> dict[str, str]:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        blobs[digest] = data
        return {"digest": digest}

    manifest = {"config": blob(json.dumps(config or {}).encode()), "layers": [blob(data) for data in layers]}
    index: dict[str, Any] = {"manifests": [blob(json.dumps(manifest).encode())]}
    if nested:
        index = {"manifests": [blob(json.dumps(index).encode())]}
    with tarfile.open(path, "w") as packed:
        for name, data in {
            "index.json": json.dumps(index).encode(),
            **{f"blobs/{d.replace(':', '/')}": b for d, b in blobs.items()},
        }.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            packed.addfile(info, io.BytesIO(data))
    return path


def test_the_same_image_is_the_same(tmp_path: Path) -> None:
    """Also where one archive wraps its manifest in an index."""
    one = image(tmp_path / "a", [layer(PLAIN)])

    assert archive.first_difference(one, image(tmp_path / "b", [layer(PLAIN)])) is None
    assert archive.first_difference(one, image(tmp_path / "c", [layer(PLAIN)], nested=True)) is None
    assert archive.manifest(one)["layers"] == archive.manifest(tmp_path / "c")["layers"]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({**PLAIN, "opt/b": (b"x", 0o755, 1)}, "layer 2: /opt/b differs (content)"),
        ({**PLAIN, "opt/a": (b"a", 0o600, 1)}, "layer 2: /opt/a differs (mode)"),
        ({**PLAIN, "opt/a": (b"a", 0o644, 2), "opt/b": (b"", 0o755, 1)}, "layer 2: /opt/a differs (time)"),
        ({"opt/a": PLAIN["opt/a"]}, "layer 2: /opt/b is in one and not in the other"),
        ({**PLAIN, "opt/c": (b"", 0o644, 1)}, "layer 2: /opt/c is in one and not in the other"),
        (dict(reversed(PLAIN.items())), "layer 2: the same files, packed in another way"),
    ],
)
def test_the_first_file_that_differs_is_named(tmp_path: Path, files: Files, said: str) -> None:
    """Content, mode, time, presence, order: each by itself, in the layer where it is."""
    same = layer({"etc/x": (b"", 0o644, 1)})
    one = image(tmp_path / "a", [same, layer(PLAIN)])

    assert archive.first_difference(one, image(tmp_path / "b", [same, layer(files)])) == said


def test_a_config_or_a_number_of_layers_that_differs_is_named(tmp_path: Path) -> None:
    """The key, with both values."""
    one = image(tmp_path / "a", [layer(PLAIN)], {"config": {"User": "kit"}, "x": 1})

    assert archive.first_difference(
        one, image(tmp_path / "b", [layer(PLAIN)], {"config": {"User": "root"}, "x": 1})
    ) == ("the config: config.User is 'kit', and 'root'")
    assert archive.first_difference(one, image(tmp_path / "c", [layer(PLAIN)] * 2)) == "1 layers, and 2"
    with tarfile.open(tmp_path / "d", "w"):
        pass
    with pytest.raises(KitError, match="no OCI layout"):
        archive.first_difference(one, tmp_path / "d")


def test_a_bundle_is_checked_file_by_file(tmp_path: Path) -> None:
    """A file that was changed, one that is gone, one more, a folder that is no bundle, a bundle of another image."""
    lock = LockedImage(
        torch="2.13.0",
        build="cpu",
        python="3.11",
        platform="linux/amd64",
        base=LockedBase(name="b", digest="sha256:1"),
        recipe="r",
    )
    (tmp_path / "fetch-torch").mkdir()
    wheel = tmp_path / "fetch-torch" / "torch.whl"
    wheel.write_bytes(b"wheel")
    write(tmp_path / "kit.lock", Lock(images={"cpu": lock}))
    with pytest.raises(UsageError, match="not a bundle"):
        bundle.read(tmp_path, "cpu")
    (tmp_path / bundle.SUMS).write_text("".join(f"{d}  {p}\n" for p, d in bundle._digests(tmp_path).items()))

    assert bundle.read(tmp_path, "cpu") == lock
    with pytest.raises(UsageError, match="it is of image cpu, not of cuda"):
        bundle.read(tmp_path, "cuda")
    wheel.write_bytes(b"other")
    with pytest.raises(DriftError, match=r"torch.whl: not what the bundle was made with"):
        bundle.read(tmp_path, "cpu")
    (tmp_path / ".DS_Store").touch()
    with pytest.raises(DriftError, match=r".DS_Store: no part of the bundle"):
        bundle.read(tmp_path, "cpu")
    (tmp_path / ".DS_Store").unlink()
    wheel.unlink()
    with pytest.raises(DriftError, match=r"torch.whl: missing"):
        bundle.read(tmp_path, "cpu")
    (tmp_path / bundle.SUMS).write_text("\n")
    with pytest.raises(DriftError, match=r"SHA256SUMS:1: '' is not a digest"):
        bundle.read(tmp_path, "cpu")


def test_where_a_bundle_cannot_be_written_is_told_first(tmp_path: Path) -> None:
    """A folder with something in it, a file, a place below a file: before anything is resolved, and no lock is written."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "kit.yaml").write_text("version: 1\n")
    for folder in ("full", "kit.yaml", "kit.yaml/below"):
        done = kit("bundle", "cpu", folder, cwd=tmp_path, env={"DOCKER_HOST": "unix:///nowhere.sock"})
        assert done.code == 2, done.err
        assert "not there yet" in done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "kit.yaml"]


@pytest.mark.parametrize("there", [False, True])
def test_nothing_is_left_of_a_bundle_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    """Buildx fails after half of it was written: the folder is as it was before."""
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    folder = tmp_path / "above" / "bundle"
    if there:
        folder.mkdir(parents=True)
    wanted, lock = asked(tmp_path), locked()
    with pytest.raises(BuildError, match="fetching for the bundle failed"):
        bundle.write(folder, wanted, lock, lambda _: None)

    assert folder.exists() is there
    assert [path.name for path in tmp_path.rglob("*") if "bundle" in path.name] == ["bundle"] * there


def test_progress_tells_steps_times_and_the_file_that_is_not_the_locked_one() -> None:
    """Out of BuildKit's plain lines."""
    lines = [
        "#1 [internal] load build definition", "#1 DONE 0.1s", "#5 [fetch-torch 2/2] RUN --mount=x sh /shared/fetch.sh /torch.txt",
        "#5 CACHED", "#6 [image 5/6] RUN --mount=x sh /shared/install.sh /packages.txt", "#6 2.1 Expected sha256 " + "a" * 64,
        "#6 2.1      Got        " + "b" * 64, "#6 DONE 3.5s", "#7 [image 3/6] RUN x     sh /shared/install-debian.sh", "#7 DONE 0.2s",
    ]  # fmt: skip
    found = progress.steps(lines)
    assert [(s.name, s.seconds) for s in found] == [
        ("fetch torch", None),
        ("install packages", 3.5),
        ("install debian", 0.2),
    ]
    assert [progress.begun(line) for line in (lines[0], lines[2], lines[4])] == [
        None, "[fetch-torch 2/2] fetch torch", "[image 5/6] install packages",
    ]  # fmt: skip
    locked = LockedImage(
        torch="2", build="cpu", python="3.11", platform="p", base=LockedBase(name="b", digest="d"), recipe="r",
        packages={"einops": Package(version="1", file="einops-1.whl", sha256="a" * 64)},
    )  # fmt: skip
    told = progress.failure([*lines[:7], "#6 ERROR: process did not complete: exit code: 1"], locked)
    assert told.startswith("einops: einops-1.whl is not the locked file")
    unknown = "#6 1.0 SSLError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed')"
    told = progress.failure([lines[4], unknown, "#6 ERROR: process did not complete: exit code: 1"], locked)
    assert "--ca FILE" in told.splitlines()[0]
