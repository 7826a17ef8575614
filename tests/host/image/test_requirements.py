"""What the user asks for on top: which files are taken, which are refused, and by what name."""

from pathlib import Path
from typing import Any

import pytest

from accelkit.host.errors import BuildError, UsageError
from accelkit.host.image import requirements, resolve, uvlock


def refusal(files: list[str], project: str | None, folder: Path) -> UsageError:
    """The refusal of what is asked for."""
    with pytest.raises(UsageError) as told:
        requirements.gather(files, project, folder)
    return told.value


def test_a_project_is_its_lock_else_its_pyproject_else_its_requirements(tmp_path: Path) -> None:
    """The most exact of the three is taken; the kind is told by the name."""
    for name, kind in (("requirements.txt",) * 2, ("pyproject.toml",) * 2, ("uv.lock",) * 2):
        (tmp_path / name).write_text("")
        (found,) = requirements.gather([], ".", tmp_path)
        assert (found.path, found.kind) == (tmp_path / name, kind)
    (given,) = requirements.gather([], "pyproject.toml", tmp_path)
    assert given.kind == "pyproject.toml"


def test_condas_files_are_refused_by_name(tmp_path: Path) -> None:
    """As a file of requirements, and as all that a project has."""
    (tmp_path / "environment.yml").write_text("dependencies: []\n")

    assert "environment.yml is Conda's" in refusal(["environment.yml"], None, tmp_path).message
    told = refusal([], ".", tmp_path)
    assert "environment.yml is Conda's" in told.message
    assert "uv.lock" in (told.hint or "")


def test_files_that_are_not_there_or_point_elsewhere_are_refused(tmp_path: Path) -> None:
    """File, line and flag are named."""
    (tmp_path / "more.txt").write_text("numpy\n-r other.txt\n")

    assert refusal(["none.txt"], None, tmp_path).message == "--requirements none.txt: not there"
    assert "more.txt:2: -r other.txt" in refusal(["more.txt"], None, tmp_path).message
    assert "neither uv.lock nor pyproject.toml" in refusal([], ".", tmp_path).message


def test_mentions_are_of_the_package_alone(tmp_path: Path) -> None:
    """With and without a version, in requirements and in a project's list; not of packages whose names begin alike."""
    path = tmp_path / "requirements.txt"
    for text, expected in {
        "torchvision\n": True, "TorchVision>=0.2\n": True, "torchvision[x]==1 ; python_version > '3'\n": True,
        "torchvision-extra\n": False, "# torchvision\n": False, "": False, "--no-binary torchvision\n": False, "six; torchvision\n": False,
        "torchvision @ https://host/x.whl\n": True, "torchvision --hash=sha256:0\n": True,
    }.items():  # fmt: skip
        path.write_text(text)
        assert requirements.mentions(requirements.gather([path.name], None, tmp_path), "torchvision") is expected, text
    project = tmp_path / "pyproject.toml"
    for text, expected in {
        '[project]\ndependencies = [\n  "torchvision>=0.2",\n]\n': True,
        '[project]\ndependencies = ["iniconfig", "TorchVision"]\n': True,
        '[project]\ndescription = """\ntorchvision\n"""\ndependencies = ["iniconfig"]\n': False,
    }.items():
        project.write_text(text)
        assert requirements.mentions(requirements.gather([], "pyproject.toml", tmp_path), "torchvision") is expected, (
            text
        )
    lock = tmp_path / "uv.lock"
    lock.write_text('[[package]]\nname = "x"\nsource = { virtual = "." }\ndependencies = [{ name = "torchvision" }]\n')
    assert requirements.mentions(requirements.gather([], "uv.lock", tmp_path), "torchvision")


UV_LOCK: dict[str, Any] = {
    "package": [
        {
            "name": "mine",
            "source": {"virtual": "."},
            "dependencies": [
                {"name": n} for n in ("torch", "torchmetrics", "triton", "timm", "cuda-python", "nvidia-ml-py")
            ],
            "optional-dependencies": {"server": [{"name": "torchaudio"}]},
        },
        {
            "name": "torch",
            "dependencies": [{"name": n} for n in ("numpy", "triton", "nvidia-cublas-cu12", "cuda-toolkit")],
        },
        {"name": "cuda-toolkit", "optional-dependencies": {"nccl": [{"name": "nvidia-nccl"}]}},
        {"name": "timm", "dependencies": [{"name": "torch"}, {"name": "torchvision"}]},
        {"name": "torchaudio", "dependencies": [{"name": "torch"}]},
    ]
}
"""A project, as uv has locked it: torch brings two packages of NVIDIA's, and one more by an extra."""


def test_a_lock_of_uvs_leaves_torch_to_the_image() -> None:
    """Torch goes, and what its build alone brings; whatever the project names itself stays, however its name begins."""
    kept = ["cuda-python==13.0", "einops==0.8", "numpy==2.4", "nvidia-ml-py==13.5", "timm==1.0", "torch-geometric==2.7"]
    kept += ["torchmetrics==1.8", "tritonclient==2.61"]
    gone = [
        "cuda-toolkit==12.8",
        "nvidia-cublas-cu12==12.8 ; sys_platform == 'linux'",
        "nvidia-nccl==2.27",
        "torch==2.9.0+cu128",
    ]

    assert uvlock.without_torch("\n".join([*kept, *gone]), UV_LOCK) == "\n".join(kept) + "\n"
    assert uvlock.torch_of("\n".join(gone)) == "2.9.0"
    assert uvlock.torch_of("einops==0.8\n") is None


def test_what_is_of_torchs_build_is_taken_from_it() -> None:
    """A package that the project names beside torch is in the version that the image's torch wants, torchvision of any build."""
    exported = "triton==3.5.0 ; sys_platform == 'linux'\ntorchvision==0.24.0+cu128\n"
    assert uvlock.without_torch(exported, UV_LOCK) == "triton ; sys_platform == 'linux'\ntorchvision==0.24.0\n"
    assert "torchvision" in uvlock.names(UV_LOCK), "timm needs it"
    assert "torchaudio" not in uvlock.names(UV_LOCK), "an extra of the project is not exported"


def pylock(*digests: str) -> str:
    """An answer of uv's: einops in as many wheels."""
    rows = ", ".join(
        f'{{ url = "https://host/{d[0]}-0.8-py3-none-any.whl", hashes = {{ sha256 = "{d}" }} }}' for d in digests
    )
    return f'[[packages]]\nname = "einops"\nversion = "0.8"\nwheels = [{rows}]\n'


def test_only_a_file_with_a_hash_that_the_requirements_allow_is_taken(tmp_path: Path) -> None:
    """Also over several lines and files; else the package is refused by name. Without hashes any file is taken."""
    one, two = "a" * 64, "b" * 64
    (tmp_path / "one.txt").write_text(
        f"six\nEinops==0.8 \\\n    --hash=sha256:{two.upper()} \\\n    --hash=sha256:{'c' * 64}  # why\n"
    )
    (tmp_path / "two.txt").write_text(f"einops --hash=sha256:{'d' * 64}\n")
    allowed = requirements.hashes(requirements.gather(["one.txt"], None, tmp_path))
    both = requirements.hashes(requirements.gather(["one.txt", "two.txt"], None, tmp_path))

    assert resolve.parse(pylock(one, two), None)["einops"].sha256 == one
    assert resolve.parse(pylock(one, two), None, allowed)["einops"].sha256 == two
    with pytest.raises(BuildError, match=r"one\.txt: einops 0\.8: no wheel with a hash that is allowed"):
        resolve.parse(pylock(one), None, allowed)
    with pytest.raises(BuildError, match=r"two\.txt: einops 0\.8: no wheel with a hash that is allowed"):
        resolve.parse(pylock(one, two), None, both)
    (tmp_path / "three.txt").write_text(f"einops --hash=md5:{'d' * 32}\n")
    assert "three.txt: einops: a hash of kind md5 alone" in refusal(["three.txt"], None, tmp_path).message


def test_no_password_is_told(tmp_path: Path) -> None:
    """The line of an address that is refused is shown without the login in it."""
    for line in (
        "-e git+https://bob:S3cret@host/x",
        "-r https://bob:S3c@ret@host/x",
        "--requirement=https://S3cret@host/x",
    ):
        (tmp_path / "more.txt").write_text(line + "\n")
        told = refusal(["more.txt"], None, tmp_path).message
        assert "host/x" in told
        assert "S3c" not in told
    assert "S3c" not in refusal(["https://bob:S3cret@host/x.txt"], None, tmp_path).message


def test_a_damaged_project_file_is_named(tmp_path: Path) -> None:
    """Before anything is resolved."""
    for name in ("pyproject.toml", "uv.lock"):
        (tmp_path / name).write_text("[project\n")
        assert f"{name}: not TOML" in refusal([name], None, tmp_path).message


def test_a_file_that_is_not_utf_8_is_refused_with_its_line(tmp_path: Path) -> None:
    """Also a later line; a byte order mark is no part of the first package's name."""
    path = tmp_path / "requirements.txt"
    path.write_bytes("six\n# für\n".encode("latin-1"))
    told = refusal([path.name], None, tmp_path)
    assert "requirements.txt:2: not UTF-8 (byte 0xfc)" in told.message
    path.write_bytes(b"\xef\xbb\xbfsix\n")
    assert requirements.gather([path.name], None, tmp_path)[0].text == "six\n"
