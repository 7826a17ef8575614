"""Containers at their limits, and folders with names that Compose would read otherwise."""

from pathlib import Path

from tests.support.kit import kit, runs

WORKER = """
import multiprocessing

def work():
    held = bytearray(1 << 30)
    for i in range(0, len(held), 4096): held[i] = 1

if __name__ == "__main__":
    worker = multiprocessing.Process(target=work)
    worker.start()
    worker.join()
    if worker.exitcode: raise RuntimeError(f"worker exited unexpectedly: {worker.exitcode}")
"""


def test_a_worker_that_was_killed_for_memory_is_named_with_the_failure(tmp_path: Path) -> None:
    """The exception of the rank alone does not speak of memory."""
    (tmp_path / "s.py").write_text(WORKER)
    done = kit("run", "--image", "cpu", "--memory", "256m", "s.py", cwd=tmp_path)

    assert done.code == 1
    assert "raised RuntimeError: worker exited unexpectedly: -9" in done.err
    assert "the kernel killed 1 process(es) of its node for memory, at the container's limit of 256 MiB" in done.err


def test_a_folder_with_a_dollar_in_its_name_is_itself(tmp_path: Path) -> None:
    """As working folder, as mount, as anything else that stands in the Compose file."""
    work = tmp_path / "pay$HOME"
    work.mkdir()
    (work / "s.py").write_text("import os\nprint(os.getcwd())\n")
    done = kit("run", "--image", "cpu", "s.py", cwd=work)

    assert f"[node0 rank0] {work}" in done.out, done.err
    assert [run["state"] for run in runs(work)] == ["ok"]


def test_mounts_that_no_engine_makes_are_refused_before_it_is_asked(tmp_path: Path) -> None:
    """Usage errors, with kit's own words."""
    (tmp_path / "s.py").write_text("")
    for mount, words in (("/:/", "/ is the container's own"), (".:/proc/x", "/proc/x is the container's own"),
                         (".", "is mounted already"), (".:/accelkit/run", "is mounted already")):  # fmt: skip
        done = kit("run", "--image", "cpu", "--dry-run", "--mount", mount, "s.py", cwd=tmp_path)
        assert (done.code, words in done.err) == (2, True), done.err
