"""kit.lock: readable, the same text for the same content, read strictly; and what no longer fits is named."""

import dataclasses
import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from accelkit.host.config.model import BuildConfig
from accelkit.host.errors import BuildError, KitError, UsageError
from accelkit.host.image import catalogue, digests, drift, inputs, lockfile, locking, resolve, sbom, variants
from accelkit.host.image.inputs import Inputs
from accelkit.host.image.lockfile import DebianPackage, Lock, LockedBase, LockedImage, Package
from accelkit.host.image.requirements import Requirements
from tests.support.kit import kit

TORCH = Package(
    version="2.13.0+cpu", file="torch-2.13.0+cpu-cp311-x.whl", sha256="a" * 64, origin="wheels", layer="torch"
)
EINOPS = Package(version="0.8.2", file="einops-0.8.2-py3-none-any.whl", sha256="b" * 64)


def locked(**changes: object) -> LockedImage:
    """A locked image of two packages."""
    plain = LockedImage(
        torch="2.13.0", build="cpu", python="3.11", platform="linux/amd64", base=LockedBase(name="base:1", digest="sha256:1"),
        recipe="sha256:r", inputs={"requirements.txt": "sha256:q"}, packages={"torch": TORCH, "einops": EINOPS},
        apt=("git",), debian={"git": DebianPackage(version="1:2.39", file="git_1%3a2.39_amd64.deb", sha256="c" * 64)},
    )  # fmt: skip
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


def asked(folder: Path, **changes: object) -> Inputs:
    """Inputs that fit `locked()`."""
    spec = catalogue.load("cpu")
    path = folder / "requirements.txt"
    path.write_text("einops\n")
    plain = Inputs(
        spec=spec, variant=variants.choose(spec, catalogue.compatibility("cpu"), variants.Wanted()), platform="linux/amd64",
        base=LockedBase(name="base:1", digest="sha256:1"), base_is_here=True, recipe="sha256:r",
        requirements=(Requirements(path=path, kind="requirements.txt"),), apt=("git",), wheels=folder, torch_wheel=True,
        index_url=None, ca=None, network=None, proxies=(),
    )  # fmt: skip
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


@pytest.fixture
def fitting(tmp_path: Path) -> tuple[LockedImage, Inputs]:
    """A lock and inputs that it fits, with torch's wheel in the folder of wheels."""
    wheel = tmp_path / TORCH.file
    wheel.write_bytes(b"wheel")
    wanted = asked(tmp_path)
    torch = dataclasses.replace(TORCH, sha256="4eb91d0f7dd9cc0eb2ee8bb8d3e8e0d5d8d0a5f2d05b1ba5ac32a4b0a2c6a8a1")
    torch = dataclasses.replace(torch, sha256=digests.of_file(wheel))
    return locked(inputs=wanted.asked, packages={"torch": torch, "einops": EINOPS}), wanted


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Sorted, without anything empty, and the same text whatever the order in which it was made."""
    one = Lock(images={"cuda": locked(), "cpu": locked(apt=(), debian={})})
    other = Lock(
        images={"cpu": locked(apt=(), debian={}, packages={"einops": EINOPS, "torch": TORCH}), "cuda": locked()}
    )
    lockfile.write(tmp_path / "kit.lock", one)

    assert lockfile.read(tmp_path / "kit.lock") == lockfile.Lock(
        images={n: lockfile.ordered(i) for n, i in other.images.items()}
    )
    assert lockfile.text(one) == lockfile.text(other)
    assert "debian: {}" not in lockfile.text(one)
    assert lockfile.text(one).index("cpu:") < lockfile.text(one).index("cuda:")
    assert locked().digest == locked(packages={"einops": EINOPS, "torch": TORCH}).digest != locked(python="3.12").digest


def test_a_damaged_lock_is_named(tmp_path: Path) -> None:
    """File and field; a version of the format that this kit does not know."""
    path = tmp_path / "kit.lock"
    assert lockfile.read(path) is None
    path.write_text("version: 1\nimages: {cpu: {torch: 2.13.0}}\n")
    with pytest.raises(KitError, match=r"kit.lock: images.cpu.build: missing"):
        lockfile.read(path)
    damaged = {b"version: 9\n": "version 9", b"\xff\n": "utf-8", b"<<<<<<< HEAD\nversion: 1\n=======\n": "kit.lock: "}
    for content, said in damaged.items():
        path.write_bytes(content)
        with pytest.raises(KitError, match=said) as told:
            lockfile.read(path)
        assert "delete it" in (told.value.hint or ""), "kit lock alone reads it first, and fails as well"
    path.unlink()
    path.mkdir()
    with pytest.raises(KitError, match=r"kit.lock: .*directory"):
        lockfile.read(path)


def test_two_that_lock_at_once_keep_both_images(tmp_path: Path) -> None:
    """Each writes its own image into what the file holds by then."""
    path = tmp_path / "kit.lock"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: lockfile.put(path, f"image{number}", locked()), range(16)))

    found = lockfile.read(path)
    assert found is not None
    assert sorted(found.images) == sorted(f"image{number}" for number in range(16))
    assert [one.name for one in tmp_path.iterdir()] == ["kit.lock"]


def test_every_name_is_known_before_any_image_is_locked(tmp_path: Path) -> None:
    """A wrong name beside a right one: nothing is written."""
    done = kit("lock", "cpu", "nosuch", cwd=tmp_path, env={"DOCKER_HOST": "unix:///nowhere.sock"})
    assert done.code == 2
    assert "no image is named 'nosuch'" in done.err
    assert not (tmp_path / "kit.lock").exists()


def test_checking_and_upgrading_are_not_asked_at_once(tmp_path: Path) -> None:
    """One of them would be forgotten."""
    done = kit("lock", "--check", "--upgrade", cwd=tmp_path)
    assert done.code == 2
    assert "--check with --upgrade" in done.err


def test_requirements_of_equal_names_are_all_locked(tmp_path: Path) -> None:
    """Files that share their names and those of their folders: each change of one is a drift."""
    files = []
    for top in "pqr":
        (tmp_path / top / "a").mkdir(parents=True)
        path = tmp_path / top / "a" / "requirements.txt"
        path.write_text(top)
        files.append(Requirements(path=path, kind="requirements.txt"))
    wanted = asked(tmp_path, requirements=tuple(files))

    assert list(wanted.asked) == ["requirements.txt", "a/requirements.txt", "r/a/requirements.txt"]
    assert sorted(wanted.asked.values()) == sorted(one.digest for one in files)


def test_layers_and_debian_packages_are_written_as_the_build_takes_them() -> None:
    """A line a package, with its hash; torch's layer apart."""
    assert locked().requirements("torch") == f"torch==2.13.0+cpu --hash=sha256:{'a' * 64}\n"
    assert locked().requirements("packages") == f"einops==0.8.2 --hash=sha256:{'b' * 64}\n"
    assert locked().debian_lines() == f"git 1:2.39 {'c' * 64} git_1%3a2.39_amd64.deb\n"


def test_a_lock_that_fits_has_no_drift(fitting: tuple[LockedImage, Inputs]) -> None:
    """The wheels are read and compared too."""
    assert drift.find(*fitting) == []


def test_every_drift_is_named(fitting: tuple[LockedImage, Inputs], tmp_path: Path) -> None:
    """Each single change of what is asked for, or of the lock, is one sentence about that thing."""
    lock, wanted = fitting

    def of(lock: LockedImage = lock, **changes: object) -> str:
        (found,) = drift.find(lock, dataclasses.replace(wanted, **changes))  # type: ignore[arg-type]
        return found

    assert of(platform="linux/arm64").startswith("platform: locked is linux/amd64")
    assert of(variant=dataclasses.replace(wanted.variant, torch="2.12.1")).startswith("torch: locked is 2.13.0")
    assert of(variant=dataclasses.replace(wanted.variant, python="3.12")).startswith("python: ")
    assert of(variant=dataclasses.replace(wanted.variant, name="cu130")).startswith("variant: ")
    assert of(recipe="sha256:other").startswith("recipe: ")
    assert of(base=LockedBase(name="base:1", digest="sha256:2")) == "base: base:1 is sha256:2 here, locked is sha256:1"
    assert of(base=LockedBase(name="base:2", digest="sha256:1")).startswith("base: locked is base:1")
    assert of(apt=()) == "apt: locked are git, asked for are none"
    assert of(requirements=()) == "requirements: requirements.txt is locked, and not asked for any more"
    assert of(dataclasses.replace(lock, inputs={})) == "requirements: requirements.txt is new"
    assert (
        of(dataclasses.replace(lock, inputs={"requirements.txt": "sha256:0"}))
        == "requirements: requirements.txt has changed"
    )
    (tmp_path / TORCH.file).write_bytes(b"another wheel of the same name")
    assert of().startswith(f"torch: {TORCH.file} in --wheels has sha256")
    (tmp_path / TORCH.file).unlink()
    assert of().startswith(f"torch: {TORCH.file} came from --wheels, and is not there")


def test_a_base_that_is_still_to_be_pulled_is_no_drift(fitting: tuple[LockedImage, Inputs]) -> None:
    """Its digest is asked for outright, and nothing else can be pulled."""
    lock, wanted = fitting
    assert drift.find(lock, dataclasses.replace(wanted, base=LockedBase(name="base:1", digest=""))) == []


def test_what_another_lock_changes_is_listed() -> None:
    """Added, removed, of another version, another file of the same version."""
    new = locked(packages={"torch": dataclasses.replace(TORCH, sha256="f" * 64), "numpy": EINOPS})

    assert drift.changes(None, new) == ["2 packages"]
    assert drift.changes(locked(), new) == ["+ numpy 0.8.2", "- einops 0.8.2", "  torch 2.13.0+cpu: another file"]
    older = locked(packages={"torch": TORCH, "einops": dataclasses.replace(EINOPS, version="0.8.1")})
    assert drift.changes(older, locked()) == ["  einops 0.8.1 -> 0.8.2"]


def test_what_is_locked_holds_where_the_user_says_nothing() -> None:
    """A kit with newer defaults builds an old lock; a wish of the user's own wins."""
    config = locking.preferring("cpu", BuildConfig(), locked(torch="2.12.1", python="3.12"))
    assert (config.torch, config.python, config.variant, config.base) == ("2.12.1", "3.12", "cpu", "base:1")
    assert locking.preferring("cpu", BuildConfig(torch="2.11.0"), locked()).torch == "2.11.0"
    of_cuda = locked(build="cu130")
    assert locking.preferring("cuda", BuildConfig(), of_cuda).variant == "cu130"
    assert locking.preferring("cuda", BuildConfig(cuda="12.6"), of_cuda).variant is None
    assert locking.preferring("cpu", BuildConfig(), None) == BuildConfig()


def test_what_is_locked_stands_in_the_way_of_nothing() -> None:
    """A torch or a build that the catalogue has no more, or that does not go with what is asked for, is chosen anew; the rest stays."""
    gone = locking.preferring("cpu", BuildConfig(), locked(torch="1.0.0", python="3.12"))
    assert (gone.torch, gone.python, gone.variant, gone.base) == (None, "3.12", "cpu", "base:1")
    assert locking.preferring("cuda", BuildConfig(), locked(build="cu90")).variant is None
    known = catalogue.compatibility("cuda")
    new, old = max(known.torch, key=variants.version_key), min(known.torch, key=variants.version_key)
    (build, *_) = [name for name in known.torch[old].builds if name not in known.torch[new].builds]
    asked_for = locking.preferring("cuda", BuildConfig(torch=new), locked(torch=old, build=build))
    assert (asked_for.torch, asked_for.variant) == (new, None)
    assert locking.preferring("cpu", BuildConfig(python="3.12"), locked()).base is None, (
        "the locked base has another Python"
    )
    assert locking.preferring("cpu", BuildConfig(), locked(platform="linux/riscv64")).platform is None
    with pytest.raises(UsageError, match=r"torch 9\.9"):
        variants.choose(
            catalogue.load("cpu"), catalogue.compatibility("cpu"),
            inputs.wanted(locking.preferring("cpu", BuildConfig(torch="9.9"), locked())),
        )  # fmt: skip


def test_wheels_of_another_build_are_refused(tmp_path: Path) -> None:
    """A folder with torch for CPUs is not meant for CUDA, nor one of another version for TPUs; the right one is found."""

    def holds(image: str, file: str) -> bool:
        for old in tmp_path.glob("*.whl"):
            old.unlink()
        (tmp_path / file).touch()
        variant = variants.choose(catalogue.load(image), catalogue.compatibility(image), variants.Wanted())
        return inputs.torch_wheel(image, variant, tmp_path)

    assert holds("cpu", "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl")
    assert not holds("cpu", "torchvision-0.28.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl")
    for image, file in (
        ("cuda", "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"),
        ("tpu", "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"),
        ("cpu", "torch-2.13.0+cpu-cp312-cp312-manylinux_2_28_x86_64.whl"),
    ):
        with pytest.raises(UsageError, match=rf"--wheels: .* is not what the image {image} needs"):
            holds(image, file)


def test_documents_beside_the_image_name_every_file(tmp_path: Path) -> None:
    """SBOM and provenance: base, wheels and Debian packages with their digests; the same lock gives the same text."""
    sbom.write(tmp_path / "docs", "cpu", locked(), {"accelkit-cpu": "d" * 64})
    bill, origin = (tmp_path / "docs" / name for name in ("sbom.spdx.json", "provenance.json"))

    for digest in ("a" * 64, "b" * 64, "c" * 64):
        assert digest in bill.read_text()
        assert digest in origin.read_text()
    assert json.loads(origin.read_text())["subject"] == [{"name": "accelkit-cpu", "digest": {"sha256": "d" * 64}}]
    assert bill.read_text() == sbom.spdx("cpu", locked())


def test_of_several_wheels_of_a_version_the_closest_is_taken() -> None:
    """For this Python before the stable interface before none, for a platform before any; one without a hash is no choice."""

    def taken(*files: str, hashed: bool = True) -> str:
        rows = ", ".join(
            f'{{ url = "https://host/{file}", hashes = {{ {"sha256" if hashed else "md5"} = "{number}" }} }}'
            for number, file in enumerate(files)
        )
        pylock = f'[[packages]]\nname = "a"\nversion = "1"\nwheels = [{rows}]\n'
        return resolve.parse(pylock, None)["a"].file

    any_, platform = "a-1-py3-none-any.whl", "a-1-py3-none-manylinux_2_28_x86_64.whl"
    stable, exact = (f"a-1-{tags}-manylinux_2_28_x86_64.whl" for tags in ("cp37-abi3", "cp311-cp311"))
    for files in itertools.permutations((any_, platform, stable, exact)):
        assert taken(*files) == exact
        assert taken(*(file for file in files if file != exact)) == stable
    assert taken(any_, platform) == taken(platform, any_) == platform
    with pytest.raises(BuildError, match="not a wheel that can be told by its hash"):
        taken(any_, hashed=False)
