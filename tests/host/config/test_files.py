"""Config files of every kind of damage: a problem with its line, never a traceback."""

import os
from pathlib import Path

import pytest

from accelkit.host.config import foreign, loading
from accelkit.host.config.problems import ConfigError
from accelkit.host.errors import UsageError


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"run:\n  image: caf\xe9\n", "is not UTF-8"),
        (b"run:\n  image: \x07\n", "is not YAML"),
        (b"run:\n  image: [\n", "kit.yaml:3: is not YAML"),
        (b"run:\n  image: !tag x\n", "kit.yaml:2: run.image has no value"),
        (b"run:\n  image: !!timestamp 2020-13-45\n", "kit.yaml:2: run.image has no value"),
        (b"run:\n  port: 8:20\n", "kit.yaml:2: run.port is '8:20'"),
        (b"run:\n  seed: 010\n", "kit.yaml:2: run.seed is '010'"),
        (b"run:\n  seed: 2020-12-01\n", "kit.yaml:2: run.seed is '2020-12-01'"),
        (b"run:\n  ulimit: &a [*a]\n", "kit.yaml:2: run.ulimit has no value"),
        (b"run:\n  memory: 1k\n", "run.memory is '1k'; allowed: 6m or more"),
        (b"run:\n  cpus: '0.001'\n", "run.cpus is '0.001'; allowed: 0.01 or more"),
        (b"run:\n  ulimit: [nofle=10]\n", "no limit is called nofle; did you mean nofile?"),
    ],
)
def test_what_cannot_be_is_a_problem_with_its_place(tmp_path: Path, text: bytes, words: str) -> None:
    """Also what YAML itself takes for something else than it looks like."""
    (tmp_path / "kit.yaml").write_bytes(text)
    with pytest.raises(ConfigError) as caught:
        loading.load(given={}, config_file=tmp_path / "kit.yaml", cwd=Path("/nonexistent"), environ={})

    assert words in caught.value.message


def test_plain_values_are_what_they_look_like(tmp_path: Path) -> None:
    """Dates, numbers and words."""
    (tmp_path / "kit.yaml").write_text("run:\n  image: 2020-13-45\n  seed: 7\n  deterministic: true\n  port: null\n")
    run = loading.load(given={}, config_file=tmp_path / "kit.yaml", cwd=Path("/nonexistent"), environ={}).config.run

    assert (run.image, run.seed, run.deterministic, run.port) == ("2020-13-45", 7, True, None)


def test_a_variable_that_is_empty_is_not_set(tmp_path: Path) -> None:
    """As shells and pipelines write it; what a file says stands."""
    (tmp_path / "kit.yaml").write_text("run:\n  seed: 7\n  deterministic: true\n")
    environ = {"KIT_PORT": "", "KIT_MEMORY": "", "KIT_SEED": " ", "KIT_DETERMINISTIC": "", "KIT_ON": ""}
    found = loading.load(given={}, config_file=None, cwd=tmp_path, environ=environ)

    assert (found.config.run.port, found.config.run.memory, found.config.run.seed) == (None, None, 7)
    assert found.config.run.deterministic
    assert found.origins["run.seed"].text.endswith("kit.yaml:2")


def test_several_machines_are_not_taken_for_nodes_of_this_one(tmp_path: Path) -> None:
    """What is carried over is one machine's part; that there were more is said."""
    path = tmp_path / "default_config.yaml"
    path.write_text("distributed_type: MULTI_GPU\nnum_machines: 2\nnum_processes: 8\n")
    imported = foreign.read(path)

    assert (imported.values["run.nodes"], imported.values["run.procs_per_node"]) == (1, 4)
    assert any(line.startswith("num_machines: 2 machines") for line in imported.left)


@pytest.mark.parametrize("text", [b"num_machines: two\n", b"num_processes: 1.5\n", b"x: 2020-13-45\n", b"x: \xe9\n"])
def test_a_foreign_config_that_cannot_be_read_is_an_error_with_its_path(tmp_path: Path, text: bytes) -> None:
    """Never a traceback."""
    path = tmp_path / "default_config.yaml"
    path.write_bytes(b"distributed_type: NO\n" + text)
    with pytest.raises(UsageError) as caught:
        foreign.read(path)

    assert os.fspath(path) in caught.value.message
