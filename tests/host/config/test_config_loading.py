"""Merging the config: order, origins, and all problems at once."""

from pathlib import Path

import pytest

from accelkit.host.config import loading, model, writer
from accelkit.host.config.model import BuildConfig, RunConfig
from accelkit.host.config.problems import ConfigError

ROOT = Path(__file__).resolve().parents[3]


def load(
    cwd: Path, given: dict[str, object] | None = None, file: Path | None = None, **environ: str
) -> loading.Resolved:
    """Load with nothing else around."""
    return loading.load(given=given or {}, config_file=file, cwd=cwd, environ=environ)


def test_each_source_overrules_the_weaker_ones_and_only_where_it_speaks(tmp_path: Path, clean_settings: Path) -> None:
    """Flags > KIT_* > --config-file > ./kit.yaml > user default > defaults; every value knows where it is from."""
    user = clean_settings / "accelkit" / "default_config.yaml"
    user.parent.mkdir()
    user.write_text("run: {nodes: 2, seed: 2, port: 2000, timeout: 2s, memory: 2g}\n")
    (tmp_path / "kit.yaml").write_text("run:\n  seed: 3\n  port: 3000\n  timeout: 3s\n")
    (tmp_path / "other.yaml").write_text("run:\n  port: 4000\n  timeout: 4s\n")
    found = load(tmp_path, {"run.timeout": "6s"}, Path("other.yaml"), KIT_PORT="5000", KIT_TIMEOUT="5s")

    assert (found.config.run.nodes, found.config.run.seed, found.config.run.port) == (2, 3, 5000)
    assert (found.config.run.timeout, found.config.run.memory, found.config.run.on) == ("6s", "2g", "docker")
    texts = {k.partition(".")[2]: o.text.rpartition("/")[2] for k, (_, o) in found.values().items()}
    assert texts["timeout"] == "--timeout"
    assert texts["port"] == "KIT_PORT"
    assert texts["seed"] == "kit.yaml:2"
    assert texts["nodes"] == "default_config.yaml:1"
    assert texts["on"] == "default"


def test_all_problems_are_told_at_once_with_their_lines(tmp_path: Path) -> None:
    """Unknown keys with the nearest known one, wrong types, ranges, syntaxes, doubles: each with file, line and key."""
    (tmp_path / "kit.yaml").write_text(
        "run:\n  nods: 2\n  nodes: two\n  port: 0\n  memory: 4x\n  seed: 1\n  seed: 2\nbild: {}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load(tmp_path)
    text = str(caught.value)

    assert len(caught.value.problems) == 6
    for words in ("kit.yaml:2: run.nods is unknown; did you mean run.nodes?", "kit.yaml:3: run.nodes is 'two'",
                  "kit.yaml:4: run.port is 0", "kit.yaml:5: run.memory '4x'", "kit.yaml:7: run.seed is there twice",
                  "kit.yaml:8: bild"):  # fmt: skip
        assert words in text


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"run.on": "local", "run.memory": "1g"}, "--memory: run.memory has no effect with on: local"),
        ({"run.nodes": 0}, "--nodes: run.nodes is 0"),
        ({"run.port": 70000}, "--port: run.port is 70000"),
        ({"run.strategy": "magic"}, "--strategy"),
        ({"run.strategy": "single", "run.nodes": 2}, "there are 2 ranks"),
        ({"run.precision": "fp7"}, "one of no, bf16, fp16, fp8"),
    ],
)
def test_contradictions_and_wrong_values_name_the_flag(tmp_path: Path, given: dict[str, object], words: str) -> None:
    """What was typed is what the message names."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, given)

    assert words in str(caught.value)


def test_a_named_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """It is never passed over."""
    with pytest.raises(ConfigError, match=r"nope\.yaml"):
        load(tmp_path, file=Path("nope.yaml"))


def test_a_variable_near_a_known_one_is_an_error(tmp_path: Path) -> None:
    """KIT_NODE does not silently do nothing."""
    with pytest.raises(ConfigError, match="did you mean KIT_NODES"):
        load(tmp_path, KIT_NODE="2")


def test_the_sample_holds_every_key_and_is_what_the_writer_writes(tmp_path: Path) -> None:
    """examples/kit.yaml is true of the model, and loads."""
    sections = {"run": RunConfig, "build": BuildConfig}
    defaults = {
        f"{s}.{n}": writer.default_of(f) for s, kind in sections.items() for n, (f, _) in model.options(kind).items()
    }
    text = (ROOT / "examples" / "kit.yaml").read_text()

    assert text == writer.render({k: v for k, v in defaults.items() if v is not None})
    assert all(f"{key.partition('.')[2]}:" in text for key in defaults)
    assert loading.check_file(ROOT / "examples" / "kit.yaml") == []


def test_what_is_written_loads_as_it_was_given(tmp_path: Path) -> None:
    """Every kind of value survives the file."""
    values = {
        "run.nodes": 3,
        "run.env": ["A=b: c", "D_*"],
        "run.deterministic": True,
        "run.memory": "4g",
        "build.base": "x:y",
    }
    (tmp_path / "kit.yaml").write_text(writer.render(values))
    found = load(tmp_path).values()

    assert {key: found[key][0] for key in values} == values
