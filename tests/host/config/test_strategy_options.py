"""Options of strategies: one table, from which flags, variables, the file, its schema and the plug-ins come."""

from dataclasses import fields
from pathlib import Path

import pytest

from accelkit.contract import strategies
from accelkit.contract.options import options, variable_of
from accelkit.contract.strategies import PARTS, STRATEGIES, StrategyOptions
from accelkit.host.config import foreign, loading
from accelkit.host.config.problems import ConfigError
from accelkit.host.config.schema import schema
from accelkit.runtime.parallelism import ParallelismConfig
from accelkit.runtime.settings import DistributedDataParallelKwargs, XlaKwargs
from accelkit.runtime.strategies import REGISTRY
from accelkit.runtime.strategies.deepspeed_plugin import DeepSpeedPlugin
from accelkit.runtime.strategies.fsdp_plugin import FullyShardedDataParallelPlugin

PLUGINS = {
    "ddp": DistributedDataParallelKwargs,
    "fsdp": FullyShardedDataParallelPlugin,
    "deepspeed": DeepSpeedPlugin,
    "parallelism": ParallelismConfig,
    "xla": XlaKwargs,
}
SAMPLES = {"bool | None": True, "int | None": 2, "float | None": 1.0, "list[str]": ["A", "B"], "str | None": "a.*"}


def load(tmp_path: Path, given: dict[str, object], **environ: str) -> loading.Resolved:
    """Load with nothing else around."""
    return loading.load(given=given, config_file=None, cwd=tmp_path, environ=environ)


def refusal(tmp_path: Path, given: dict[str, object]) -> str:
    """What is said against settings."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, given)
    return str(caught.value)


def test_the_table_is_true_of_registry_and_plugins() -> None:
    """Every strategy is registered and described; every option is a field of its part's plug-in, and is in the schema."""
    assert set(STRATEGIES) - {"auto"} == {name for name in REGISTRY if name != "toy"}
    properties = schema()["$defs"]["RunConfig"]["properties"]
    for name, (_, described) in options(StrategyOptions).items():
        part = next(part for part, begins in PARTS.items() if name.startswith(begins))
        assert name.removeprefix(f"{part}_") in {field.name for field in fields(PLUGINS[part])}
        assert set(described.strategies) <= set(STRATEGIES)
        assert properties[name]["description"] == described.help


def test_every_option_reaches_its_plugin_by_flag_and_by_variable(tmp_path: Path) -> None:
    """What a flag sets and what a variable sets is the same, and the plug-in takes it."""
    hints = StrategyOptions.__annotations__
    for name, (_, described) in options(StrategyOptions).items():
        kind = str(hints[name]).removeprefix("typing.")
        value = next((sample for text, sample in SAMPLES.items() if text == kind), None)
        value = value if value is not None else _first_choice(hints[name])
        given = {"run.strategy": described.strategies[-1], f"run.{name}": value}
        flag = strategies.by_part(vars(load(tmp_path, given).config.run))
        text = ",".join(value) if isinstance(value, list) else str(value)
        assert flag == strategies.from_environment({variable_of(name): text}), name
        ((part, settings),) = flag.items()
        made = PLUGINS[part](**settings)
        assert getattr(made, name.removeprefix(f"{part}_")) == value


def _first_choice(kind: object) -> str:
    literal = kind.__args__[0]  # type: ignore[attr-defined]
    return str(literal.__args__[0])


def test_options_without_effect_are_refused(tmp_path: Path) -> None:
    """Of another strategy, of another wrap policy, sizes below one or that are not as many ranks: each with what is allowed."""
    assert "no effect with strategy: auto; allowed: strategy: fsdp" in refusal(tmp_path, {"run.fsdp_cpu_offload": True})
    assert "strategy: ddp" in refusal(tmp_path, {"run.strategy": "fsdp", "run.ddp_static_graph": True})
    policy = {"run.strategy": "fsdp", "run.fsdp_auto_wrap_policy": "size_based_wrap"}
    assert "transformer_based_wrap" in refusal(
        tmp_path, {**policy, "run.fsdp_transformer_cls_names_to_wrap": ["Block"]}
    )
    assert "from 1" in refusal(tmp_path, {"run.strategy": "fsdp", "run.tp_size": 0})
    sizes = {"run.strategy": "fsdp", "run.procs_per_node": 4, "run.dp_shard_size": 3}
    assert "dp_shard_size 2, tp_size 2" in refusal(tmp_path, sizes)


def test_a_files_options_wait_for_their_strategy(tmp_path: Path) -> None:
    """A block for fsdp in the project's file does not stand against another strategy that is typed."""
    (tmp_path / "kit.yaml").write_text("run:\n  strategy: fsdp\n  fsdp_cpu_offload: true\n")
    assert load(tmp_path, {}).config.run.fsdp_cpu_offload is True
    assert load(tmp_path, {"run.strategy": "ddp"}).config.run.strategy == "ddp"
    (tmp_path / "kit.yaml").write_text("run:\n  strategy: ddp\n  fsdp_cpu_offload: true\n")
    assert "kit.yaml:3" in refusal(tmp_path, {})


IMPORTS: list[tuple[str, dict[str, object], list[str]]] = [
    (
        """distributed_type: FSDP
fsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP,
  fsdp_transformer_layer_cls_to_wrap: "A,B", fsdp_min_num_params: 0, fsdp_offload_params: true,
  fsdp_backward_prefetch: BACKWARD_PRE, fsdp_state_dict_type: FULL_STATE_DICT, fsdp_use_orig_params: true}""",
        {
            "strategy": "fsdp",
            "fsdp_reshard_after_forward": False,
            "fsdp_transformer_cls_names_to_wrap": ["A", "B"],
            "fsdp_cpu_offload": True,
            "fsdp_backward_prefetch": "BACKWARD_PRE",
            "fsdp_state_dict_type": "FULL_STATE_DICT",
        },
        [],
    ),
    (
        """distributed_type: FSDP
fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: true, fsdp_activation_checkpointing: true}
parallelism_config: {parallelism_config_tp_size: 2, parallelism_config_dp_shard_size: 4, parallelism_config_cp_size: 1}""",
        {"strategy": "fsdp", "fsdp_reshard_after_forward": True, "tp_size": 2, "dp_shard_size": 4},
        [],
    ),
    ("{distributed_type: FSDP, fsdp_config: {fsdp_sharding_strategy: NO_SHARD}}", {"strategy": "ddp"}, ["NO_SHARD"]),
    (
        "{distributed_type: FSDP, fsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD}}",
        {"strategy": "fsdp"},
        ["--dp-replicate-size"],
    ),
    (
        """distributed_type: DEEPSPEED
deepspeed_config: {zero_stage: 3, offload_param_device: cpu, gradient_accumulation_steps: 4, gradient_clipping: 1.0,
  zero3_init_flag: true, offload_optimizer_device: nvme}""",
        {
            "strategy": "deepspeed",
            "deepspeed_zero_stage": 3,
            "deepspeed_offload_param_device": "cpu",
            "deepspeed_offload_optimizer_device": "nvme",
            "deepspeed_gradient_clipping": 1.0,
            "deepspeed_zero3_init_flag": True,
            "grad_accum_steps": 4,
        },
        [],
    ),
    (
        "{distributed_type: DEEPSPEED, deepspeed_config: {zero_stage: 2}}",
        {"strategy": "deepspeed", "deepspeed_zero_stage": 2},
        [],
    ),
    (
        "{distributed_type: DEEPSPEED, deepspeed_config: {deepspeed_config_file: ds.json, zero3_init_flag: false}}",
        {"strategy": "deepspeed", "deepspeed_config_file": "ds.json"},
        [],
    ),
    ("{distributed_type: DEEPSPEED, deepspeed_config: {zero_stage: 0}}", {"strategy": "ddp"}, []),
]


@pytest.mark.parametrize(("text", "wanted", "left"), IMPORTS)
def test_accelerates_blocks_are_carried_over(
    tmp_path: Path, text: str, wanted: dict[str, object], left: list[str]
) -> None:
    """What has a counterpart becomes it, and loads; everything else is named."""
    (tmp_path / "default_config.yaml").write_text(text)
    found = foreign.read(tmp_path / "default_config.yaml")
    loading.check_values(found.values)

    assert {f"run.{name}": value for name, value in wanted.items()}.items() <= found.values.items()
    assert len(found.left) == len(left), found.left
    for words in left:
        assert any(words in line for line in found.left)
