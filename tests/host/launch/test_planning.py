"""What a plan refuses: scripts that no rank would find, mounts that no engine makes."""

from pathlib import Path

import pytest

from accelkit.contract.spec import Program
from accelkit.host.errors import UsageError
from accelkit.host.launch import planning
from accelkit.host.launch.plan import Mount


def check(work: Path, target: str, *mounts: tuple[Path, str]) -> None:
    """Check a script of a container that sees `work` at its own place, and these mounts."""
    found = tuple(Mount(source=str(s), target=t) for s, t in ((work, str(work)), *mounts))
    planning.check_program(Program(kind="script", target=target), work, found)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A working folder beside another one, a script in each."""
    for name in ("work", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.py").touch()
    return tmp_path / "work"


def test_a_script_is_looked_for_where_the_container_sees_it(work: Path) -> None:
    """A mount at another place shows its files there, and only there."""
    other = work.parent / "other"
    check(work, "x.py")
    check(work, str(work / "x.py"))
    check(work, str(other / "x.py"), (other, str(other)))
    check(work, "/data/x.py", (other, "/data"))
    with pytest.raises(UsageError, match="outside every mount") as caught:
        check(work, str(other / "x.py"), (other, "/data"))

    assert "/data/x.py" in (caught.value.hint or "")


def test_a_link_out_of_every_mount_is_refused(work: Path) -> None:
    """A rank would follow it to nowhere; one within a mount is followed."""
    (work / "inside.py").symlink_to("x.py")
    (work / "outside.py").symlink_to("../other/x.py")
    check(work, "inside.py")
    check(work, "outside.py", (work.parent / "other", str(work.parent / "other")))
    with pytest.raises(UsageError, match=r"a link to .*/other/x\.py, which is outside"):
        check(work, "outside.py")


@pytest.mark.parametrize("target", ["missing.py", "/data/missing.py", "/nowhere/x.py"])
def test_a_script_that_is_not_there_is_said_to_be_so(work: Path, target: str) -> None:
    """In a mount or outside."""
    with pytest.raises(UsageError, match="no such script"):
        check(work, target, (work.parent / "other", "/data"))
