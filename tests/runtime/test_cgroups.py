"""Limits of a node, wherever its cgroup lies."""

from pathlib import Path

import pytest

from accelkit.runtime import boot_env


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree of cgroups; `tree.parent / "own"` says which is ours."""
    top = tmp_path / "cgroup"
    top.mkdir()
    monkeypatch.setattr(boot_env, "_CGROUP", top)
    monkeypatch.setattr(boot_env, "_OWN_CGROUPS", tmp_path / "own")
    return top


def put(top: Path, own: str, files: dict[str, str]) -> None:
    """Our place, and the tree's files."""
    (top.parent / "own").write_text(own)
    for name, text in files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)


def found() -> tuple[float | None, int | None, int]:
    """CPUs, bytes and kills, as a node sees them."""
    return boot_env._cfs_quota(), boot_env.memory_limit(), boot_env.oom_kills()


def test_the_least_of_our_cgroup_and_those_above_counts(tree: Path) -> None:
    """A Slurm step or a systemd scope is limited by its own files or by its job's; kills are its own."""
    put(tree, "0::/slurm/job_7/step_0\n", {
        "memory.events": "oom_kill 9\n", "slurm/job_7/cpu.max": "200000 100000", "slurm/job_7/step_0/cpu.max": "max 100000",
        "slurm/job_7/memory.max": "4096", "slurm/job_7/step_0/memory.max": "8192",
        "slurm/job_7/step_0/memory.events": "low 0\noom_kill 2\n", "slurm/job_8/memory.max": "1", "slurm/job_8/cpu.max": "1 100000",
    })  # fmt: skip

    assert found() == (2.0, 4096, 2)


@pytest.mark.parametrize("own", ["0::/\n", "0::/docker/abc\n", "0::/../other\n"])
def test_a_container_sees_its_own_cgroup_at_the_top(tree: Path, own: str) -> None:
    """Also where the path is the host's."""
    put(tree, own, {"cpu.max": "150000 100000", "memory.max": "4096", "memory.events": "oom_kill 1\n"})

    assert found() == (1.5, 4096, 1)


def test_cgroups_of_the_old_kind(tree: Path) -> None:
    """A tree a controller, each with a path of its own; a limit that is none is a very large number."""
    put(tree, "5:cpu,cpuacct:/a/b\n4:memory:/a\n0::/a/b\n", {
        "cpu,cpuacct/a/cpu.cfs_quota_us": "300000", "cpu,cpuacct/a/cpu.cfs_period_us": "100000",
        "cpu,cpuacct/a/b/cpu.cfs_quota_us": "-1", "cpu,cpuacct/a/b/cpu.cfs_period_us": "100000",
        "memory/memory.limit_in_bytes": str((1 << 63) - 4096), "memory/a/memory.limit_in_bytes": "4096",
        "memory/a/memory.oom_control": "oom_kill_disable 0\noom_kill 3\n",
    })  # fmt: skip

    assert found() == (3.0, 4096, 3)


def test_no_cgroup_is_no_limit(tree: Path) -> None:
    """Nothing is known, nothing is limited."""
    assert found() == (None, None, 0)
