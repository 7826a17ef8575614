"""Projects: what a pyproject.toml and a uv.lock say is honoured where it can be, and told with what to type where it cannot."""

import dataclasses
from pathlib import Path

import pytest

from accelkit.host import process
from accelkit.host.config.model import BuildConfig
from accelkit.host.errors import BuildError, UsageError
from accelkit.host.image import catalogue, inputs, lockfile, locking, pyproject, requirements, resolve, uv, uvlock
from accelkit.host.image.lockfile import LockedImage
from tests.host.image.test_lock import asked
from tests.support.wheels import of_image, wheel

PLAIN = '[project]\nname = "mine"\nversion = "0.1"\n'


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels from which the image cpu resolves without a network."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    of_image(folder)
    for version in ("1.0", "2.0"):
        wheel(folder, "six", version)
        wheel(folder, "einops", version, ("six",))
    wheel(folder, "older", "1.0", ("six<2",))
    return folder


def resolved(wheels: Path, text: str) -> LockedImage:
    """The image cpu with a project's pyproject.toml."""
    path = wheels.parent / "pyproject.toml"
    path.write_text(text)
    item = requirements.Requirements(path=path, kind="pyproject.toml")
    return resolve.resolve(asked(wheels.parent, wheels=wheels, requirements=(item,), apt=()))


def versions(found: LockedImage) -> dict[str, str]:
    """Package -> version, of those that a project may change."""
    return {name: package.version for name, package in found.packages.items() if name in ("six", "einops", "older")}


def test_constraints_overrides_and_exclusions_of_a_project_hold(wheels: Path) -> None:
    """As `uv lock` would have it; without them the newest versions that go together."""
    both = PLAIN + 'dependencies = ["einops", "older"]\n[tool.uv]\n'

    assert versions(resolved(wheels, PLAIN + 'dependencies = ["einops"]\n')) == {"six": "2.0", "einops": "2.0"}
    assert versions(resolved(wheels, both)) == {"six": "1.0", "einops": "2.0", "older": "1.0"}
    limited = resolved(wheels, both + "constraint-dependencies = [\"einops<2 ; sys_platform == 'linux'\"]\n")
    assert versions(limited) == {"six": "1.0", "einops": "1.0", "older": "1.0"}
    forced = resolved(wheels, both + 'override-dependencies = ["six==2.0"]\n')
    assert versions(forced) == {"six": "2.0", "einops": "2.0", "older": "1.0"}
    less = resolved(
        wheels, PLAIN + 'dependencies = ["older"]\n[tool.uv]\nexclude-dependencies = ["six", "torch", "numpy"]\n'
    )
    assert versions(less) == {"older": "1.0"}
    assert {"torch", "numpy"} <= less.packages.keys(), "what the image is made of is no matter of a project's"


def test_an_override_of_torch_leaves_the_image_its_own(wheels: Path) -> None:
    """One that allows the image's torch changes nothing, another one does not resolve: it is never taken from elsewhere."""
    text = PLAIN + 'dependencies = []\n[tool.uv]\noverride-dependencies = ["torch{}"]\n'
    torch = catalogue.load("cpu").torch

    assert resolved(wheels, text.format(">=2")).packages["torch"].version == f"{torch}+cpu"
    with pytest.raises(BuildError, match=r"torch==1\.0"):
        resolved(wheels, text.format("==1.0"))


def refused(folder: Path, text: str, config: BuildConfig | None = None, name: str = "pyproject.toml") -> UsageError:
    """The refusal of a project, before an engine is asked."""
    (folder / name).write_text(text)
    with pytest.raises(UsageError) as told:
        inputs.gather("cpu", config or BuildConfig(project="."), folder)
    return told.value


def test_another_python_than_the_images_is_refused(tmp_path: Path) -> None:
    """What the file says, what the image has, and what to type; of a uv.lock too."""
    for name, text in (("pyproject.toml", PLAIN), ("uv.lock", "version = 1\n")):
        told = refused(tmp_path, text + 'requires-python = ">=3.12,<3.14"\n', name=name)
        assert f"{name}: requires-python is >=3.12,<3.14, the image cpu gets Python 3.11" in told.message
        assert (told.hint or "").startswith("--python 3.12")
    assert "torch" in (
        refused(tmp_path, PLAIN + 'requires-python = ">=4"\n', BuildConfig(requirements=["pyproject.toml"])).hint or ""
    )


@pytest.mark.parametrize(
    ("specifier", "allowed"),
    [
        (">=3.11", True), (">=3.10, <3.12", True), ("==3.11.*", True), ("~=3.11", True), ("~=3.11.4", True), (">3.11.3,<3.11.9", True),
        ("!=3.11.0", True), ("==3.11.7", True), ("<=3.11", True), ("", True), (">=3.12", False), ("<3.11", False), ("~=3.10.2", False),
        ("==3.1.*", False), ("!=3.11.*", False), ("==3.12", False), ("~=3.12", False), ("<4,>3.11.99", False),
    ],
)  # fmt: skip
def test_versions_of_python_are_compared_as_numbers(specifier: str, allowed: bool) -> None:
    """Any release of the image's version counts."""
    assert pyproject.allows(specifier, "3.11") is allowed


def test_places_that_kit_was_not_told_of_are_refused(tmp_path: Path) -> None:
    """Indices, folders and repositories of a project's own; with an index or a wheel that were named to kit there is nothing to refuse."""
    index = '[[tool.uv.index]]\nname = "own"\nurl = "https://me:S3cret@host/simple"\n'
    told = refused(tmp_path, PLAIN + index)
    assert "tool.uv.index: kit asks no index but the one that is named to it" in told.message
    assert "--index-url URL" in (told.hint or "")
    assert "tool.uv.find-links" in refused(tmp_path, PLAIN + '[tool.uv]\nfind-links = ["/x"]\n').message
    for source in (
        '{ git = "https://S3cret@host/x" }',
        '{ path = "../x" }',
        "{ workspace = true }",
        '{ url = "https://host/x" }',
    ):
        text = f'{PLAIN}dependencies = ["Own.Pack>=1"]\n[tool.uv.sources]\nown-pack = {source}\n'
        told = refused(tmp_path, text, BuildConfig(project=".", index_url="https://host/simple"))
        assert "tool.uv.sources: own-pack comes from a place of its own" in told.message
        assert "S3cret" not in told.message
    of_index = f'{PLAIN}dependencies = ["own-pack"]\n{index}explicit = true\n[tool.uv.sources]\nown-pack = {{ index = "own" }}\n'
    assert "--index-url" in (refused(tmp_path, of_index).hint or "")
    project = pyproject.read(of_index, tmp_path / "pyproject.toml")
    pyproject.check_places(project, (), None, "https://host/simple")
    wheel(tmp_path, "Own_Pack", "1.0")
    pyproject.check_places(project, (), tmp_path, None)


def test_where_torch_comes_from_is_the_images_matter(tmp_path: Path, wheels: Path) -> None:
    """The index that projects name for torch, and what they name nobody's packages from, is no reason to refuse."""
    text = PLAIN + (
        'dependencies = ["torch>=2"]\n[[tool.uv.index]]\nname = "pytorch"\nurl = "https://host/whl/cu128"\nexplicit = true\n'
        '[tool.uv.sources]\ntorch = [{ index = "pytorch", marker = "sys_platform == \'linux\'" }]\nunused = { path = "x" }\n'
    )
    project = pyproject.read(text, tmp_path / "pyproject.toml")
    pyproject.check_places(project, catalogue.load("cpu").torch_index_packages, None, None)

    assert "torch" in resolved(wheels, text).packages


def test_a_project_whose_dependencies_are_not_listed_is_refused(tmp_path: Path) -> None:
    """Those that a build would find out, Poetry's, the project itself, and what is no list."""
    for text, said in {
        PLAIN + 'dynamic = ["dependencies"]\n': "project.dependencies is dynamic",
        '[tool.poetry.dependencies]\nsix = "*"\n': "no [project] in it",
        PLAIN + 'dependencies = ["Mine[gpu]"]\n': "project.dependencies: Mine[gpu] is the project itself",
        PLAIN + 'dependencies = "six"\n': "dependencies is not a list of texts",
        "project = 1\n": "project is not a table",
        PLAIN + "[tool.uv]\noverride-dependencies = [1]\n": "override-dependencies is not a list",
    }.items():
        assert f"pyproject.toml: {said}" in refused(tmp_path, text).message


def test_settings_that_only_uvs_lock_can_tell_of_are_told(tmp_path: Path) -> None:
    """They would lead to other versions."""
    project = pyproject.read(
        PLAIN + '[tool.uv]\nresolution = "lowest"\ndev-dependencies = []\n', tmp_path / "pyproject.toml"
    )
    assert project.without_effect == ("tool.uv.resolution",)


def locked_project(folder: Path, wheels: Path, dependencies: str = '["einops"]', more: str = "") -> Path:
    """A project with a uv.lock that was made from these wheels."""
    text = f'{PLAIN}requires-python = ">=3.10"\n'
    text += f'dependencies = {dependencies}\n[tool.uv]\nfind-links = ["{wheels}"]\nno-index = true\n{more}'
    (folder / "pyproject.toml").write_text(text)
    process.run([uv.find(), "lock", "--project", str(folder)], check=True)
    return folder / "uv.lock"


def test_a_lock_of_uvs_that_is_older_than_its_project_is_refused(tmp_path: Path, wheels: Path) -> None:
    """A dependency that was added since is named to be locked; the lock that fits passes, and one without a project is uv's to refuse."""
    path = locked_project(tmp_path, wheels)
    uv.check_lock(path, None)
    text = path.with_name("pyproject.toml").read_text()
    path.with_name("pyproject.toml").write_text(text.replace('["einops"]', '["einops", "older"]'))

    told = refused(tmp_path, path.read_text(), name="uv.lock")
    assert "uv.lock: not what the pyproject.toml beside it needs now" in told.message
    assert told.hint == f"uv lock --project {tmp_path}"
    path.with_name("pyproject.toml").unlink()
    uv.check_lock(path, None)


def test_whether_a_lock_of_uvs_fits_may_remain_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A project for a Python that is not here: that is told, and nothing refused."""
    (tmp_path / "pyproject.toml").write_text(PLAIN + 'requires-python = ">=3.99"\n')
    (tmp_path / "uv.lock").write_text("version = 1\n")
    uv.check_lock(tmp_path / "uv.lock", None)
    assert "could not be found out" in capsys.readouterr().err


def test_hashes_and_overrides_of_a_lock_of_uvs_hold(tmp_path: Path, wheels: Path) -> None:
    """A file of another content than the locked one is refused by name; what the project overrode is not resolved against its will."""
    path = locked_project(tmp_path, wheels, '["older", "six==2.0"]', 'override-dependencies = ["six==2.0"]\n')
    item = requirements.Requirements(path=path, kind="uv.lock")
    wanted = dataclasses.replace(asked(tmp_path, wheels=wheels, apt=()), requirements=(item,))

    assert versions(resolve.resolve(wanted)) == {"six": "2.0", "older": "1.0"}
    (file,) = wheels.glob("older*")
    path.write_text(path.read_text().replace(f'{file}"', f'{file}", hash = "sha256:{"a" * 64}"'))
    with pytest.raises(BuildError, match=r"uv\.lock: older 1\.0: no wheel with a hash that is allowed there"):
        resolve.resolve(wanted)


def test_what_is_left_to_torch_has_no_locked_hash() -> None:
    """Torch, what its build brings, torchvision of any build; and packages without wheels."""
    files = [{"hash": "sha256:1"}, {"hash": "sha256:2"}]
    lock = {
        "package": [
            {"name": "torch", "wheels": files, "dependencies": [{"name": "triton"}, {"name": "sympy"}]},
            *({"name": name, "wheels": files} for name in ("triton", "sympy", "torchvision", "Own.Pack")),
            {"name": "sourceonly", "sdist": {"hash": "sha256:3"}},
        ]
    }
    assert uvlock.hashes(lock) == {name: frozenset("12") for name in ("sympy", "own-pack")}


def test_another_torch_than_the_images_comes_with_what_can_be_typed(tmp_path: Path, wheels: Path) -> None:
    """The image with it where there is one, and in any case the project with the image's."""
    spec, known = catalogue.load("cpu"), catalogue.compatibility("cpu")
    other = next(torch for torch in known.torch if torch != spec.torch)
    for torch, hint in ((other, f"kit build cpu --torch {other}, or uv add"), ("1.0", "uv add")):
        wheel(wheels, "torch", torch)
        path = locked_project(tmp_path, wheels, f'["torch=={torch}"]')
        item = requirements.Requirements(path=path, kind="uv.lock")
        with pytest.raises(UsageError, match=rf"uv\.lock has torch {torch}") as told:
            resolve.resolve(dataclasses.replace(asked(tmp_path, wheels=wheels, apt=()), requirements=(item,)))
        assert told.value.hint == f"{hint} --project {tmp_path} 'torch=={spec.torch}'"


def test_a_projects_own_packages_are_told_or_installed_from_their_wheels(
    tmp_path: Path, wheels: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A member of the workspace and a folder: what they need is installed in any case, they themselves where there is a wheel."""
    for name, needs in (("member", "einops"), ("beside", "older")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pyproject.toml").write_text(
            f'[project]\nname = "{name}"\nversion = "1"\ndependencies = ["{needs}"]\n'
        )
    more = '[tool.uv.workspace]\nmembers = ["member"]\n[tool.uv.sources]\nmember = { workspace = true }\nbeside = { path = "beside" }\n'
    path = locked_project(tmp_path, wheels, '["member", "beside"]', more)
    wheel(wheels, "beside", "1", ("older",))
    item = requirements.Requirements(path=path, kind="uv.lock")
    found = resolve.resolve(dataclasses.replace(asked(tmp_path, wheels=wheels, apt=()), requirements=(item,)))

    assert {"einops", "older", "beside"} <= found.packages.keys()
    assert "member" not in found.packages
    assert "uv.lock: member: not installed, since your own code is mounted" in capsys.readouterr().err


def test_a_project_that_cannot_be_written_is_built_without_a_lock(
    tmp_path: Path, wheels: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was resolved is what is built; why nothing is written is told, and what to type."""
    wanted = asked(tmp_path, wheels=wheels, apt=(), requirements=())
    settled = locking._first(Path("/proc/kit.lock"), "cpu", wanted)
    said = capsys.readouterr().err

    assert settled.locked == resolve.resolve(wanted)
    assert "/proc/kit.lock: it cannot be written (" in said
    assert f"the {len(settled.locked.packages)} packages of image cpu" in said
    written = locking._first(tmp_path / "kit.lock", "cpu", wanted)
    assert written == settled
    assert lockfile.read(tmp_path / "kit.lock") == lockfile.Lock(images={"cpu": lockfile.ordered(settled.locked)})


def test_lines_that_name_an_index_are_refused_unless_kit_was_told_of_one(tmp_path: Path, wheels: Path) -> None:
    """File, line and option, without a login; PyTorch's own index is the image's matter, and none of them is asked."""
    of_torch = catalogue.load("cpu").torch_index.partition("{")[0]
    for line in ("--extra-index-url https://me:S3cret@host/x", "-i https://host/x", "--find-links=/x", "--no-index"):
        (tmp_path / "more.txt").write_text(f"six\n{line}\n")
        with pytest.raises(UsageError, match=r"more\.txt:2: -.*: kit asks no index but the one") as told:
            inputs.gather("cpu", BuildConfig(requirements=["more.txt"]), tmp_path)
        assert "S3cret" not in told.value.message
    text = f"--extra-index-url {of_torch}cu128\nsix==1.0 # --find-links\n--find-links {tmp_path}/nowhere\n"
    (tmp_path / "more.txt").write_text(text)
    (item,) = requirements.gather(["more.txt"], None, tmp_path)

    assert [(number, option) for number, option, _ in requirements.places(item)] == [
        (1, "--extra-index-url"),
        (3, "--find-links"),
    ]
    assert requirements.without_places(item) == "six==1.0 # --find-links\n"
    found = resolve.resolve(asked(tmp_path, wheels=wheels, apt=(), requirements=(item,)))
    assert versions(found) == {"six": "1.0"}


def test_a_member_of_a_workspace_is_told_of_its_lock(tmp_path: Path, wheels: Path) -> None:
    """The uv.lock lies above it; one that is of another project counts for nothing."""
    for name in ("member", "beside"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pyproject.toml").write_text(PLAIN.replace("mine", name))
    path = locked_project(tmp_path, wheels, "[]", '[tool.uv.workspace]\nmembers = ["member"]\n')

    def above(name: str) -> Path | None:
        place = tmp_path / name / "pyproject.toml"
        return uv.lock_above(pyproject.read(place.read_text(), place))

    assert above("member") == path
    assert above("beside") is None
