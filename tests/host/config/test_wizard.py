"""The wizard, as a person meets it: on a terminal, and without one."""

import os
import pty
import select
import subprocess
import time
from pathlib import Path

from accelkit.host.config import loading
from tests.support.kit import KIT, ROOT, kit

ENGINE = {"DOCKER_HOST": "unix:///nowhere.sock"}
"""No engine, whatever this machine has: the questions are then the same everywhere."""


def on_a_terminal(words: list[str], answers: list[str], cwd: Path) -> tuple[int, str]:
    """`kit WORDS` on a pseudo-terminal; an answer is typed whenever it waits for one."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*KIT, *words], cwd=cwd, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        env={**os.environ, **ENGINE, "PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(cwd)},
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        ready = select.select([ours], [], [], 0.1)[0]
        if ready:
            try:
                shown += os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
        elif answers and shown.rstrip().endswith(b":"):
            os.write(ours, answers.pop(0).encode() + b"\n")
            shown += b"\n"
        elif process.poll() is not None:
            break
    os.close(ours)
    process.wait(timeout=10)
    assert not answers, f"not asked for: {answers}; shown: {shown.decode()}"
    return process.returncode, shown.decode()


def test_a_person_is_asked_what_matters_and_again_after_a_wrong_answer(tmp_path: Path) -> None:
    """Local ranks: nothing about images or memory; a wrong number is refused with what is allowed and asked again; the file loads."""
    code, shown = on_a_terminal(
        ["config", "--project"],
        ["local", "minus one", "2", "3", "fsdp", "Block,Other", "yes", "no", "bf16", "yes"],
        tmp_path,
    )
    resolved = loading.load(given={}, config_file=tmp_path / "kit.yaml", cwd=Path("/nonexistent"), environ={})
    run = resolved.config.run

    assert code == 0, shown
    assert "image" not in shown
    assert "whole number" in shown
    assert (run.strategy, run.fsdp_transformer_cls_names_to_wrap) == ("fsdp", ["Block", "Other"])
    assert (run.fsdp_cpu_offload, run.fsdp_activation_checkpointing) == (True, False)
    assert (run.on, run.nodes, run.procs_per_node, run.precision, run.deterministic) == ("local", 2, 3, "bf16", True)


def test_without_a_terminal_nothing_is_asked(tmp_path: Path) -> None:
    """Flags answer; a file that is there is kept, unless --force says otherwise."""
    env = {**ENGINE, "XDG_CONFIG_HOME": str(tmp_path)}
    first = kit("config", "--project", "--nodes", "2", cwd=tmp_path, env=env)
    text = (tmp_path / "kit.yaml").read_text()
    second = kit("config", "--project", "--nodes", "4", cwd=tmp_path, env=env)

    assert first.code == 0, first.err
    assert second.code == 2
    assert "--force" in second.err
    assert (tmp_path / "kit.yaml").read_text() == text
    assert kit("config", "--project", "--nodes", "4", "--force", cwd=tmp_path, env=env).code == 0
    assert "nodes: 4" in (tmp_path / "kit.yaml").read_text()
