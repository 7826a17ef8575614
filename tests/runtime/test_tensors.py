"""Functions of `accelkit.utils` on structures, the environment and what this machine has."""

import os
import pickle
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import accelkit.utils as family
from accelkit.runtime.errors import UnsupportedError


class Pair(NamedTuple):
    """A named tuple."""

    x: Any
    y: Any


def test_structures_and_back() -> None:
    """Shapes and types stand for tensors, tensors of that build come back, and lists hold their values, bfloat16 included."""
    data = {"a": torch.ones(2, 3), "b": [Pair(torch.tensor(1.5, dtype=torch.bfloat16), "text")]}
    skeleton = family.get_data_structure(data)
    again = family.initialize_tensors(skeleton)

    assert skeleton["a"] == family.TensorInformation(torch.Size([2, 3]), torch.float32)
    assert family.get_shape(data)["b"][0] == Pair([], "text")
    assert (again["a"].shape, again["b"][0].x.dtype) == ((2, 3), torch.bfloat16)
    assert isinstance(again["b"][0], Pair)
    assert family.listify(data) == {"a": [[1.0] * 3] * 2, "b": [Pair(1.5, "text")]}
    assert family.find_device(data) == torch.device("cpu")
    assert family.honor_type(Pair(1, 2), (n for n in (3, 4))) == Pair(3, 4)


@pytest.mark.parametrize(("data", "error"), [([], ValueError), (torch.tensor(1.0), ValueError), ("text", TypeError)])
def test_batch_sizes(data: Any, error: type[Exception]) -> None:
    """The first tensor's first dimension; an error that says what was given where there is none."""
    assert family.find_batch_size([{"a": torch.ones(3, 1)}]) == 3
    assert family.ignorant_find_batch_size(data) is None
    with pytest.raises(error):
        family.find_batch_size(data)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.int8, torch.bfloat16])
def test_padding_for_chunks(dtype: torch.dtype) -> None:
    """For all small sizes a batch is filled with zeros until it divides, and what is no batch stays."""
    for size in range(1, 8):
        for ranks in range(1, 5):
            padded = family.pad_input_tensors([torch.ones(size, 2, dtype=dtype), torch.ones(9)], size, ranks)
            assert len(padded[0]) % ranks == 0
            assert padded[0].dtype == dtype
            assert padded[0].float().sum() == 2 * size
            assert len(padded[1]) == 9 or size == 9


def test_forwards_that_answer_in_float32() -> None:
    """The wrapped forward answers in float32, shows what it wraps, and says why it cannot be pickled."""
    converted = family.convert_outputs_to_fp32(lambda x: {"y": x.half(), "n": 1})
    assert converted(torch.ones(1))["y"].dtype == torch.float32
    assert converted.__wrapped__(torch.ones(1))["y"].dtype == torch.float16  # type: ignore[attr-defined]
    with pytest.raises(pickle.PicklingError, match="unwrap_model"):
        pickle.dumps(family.ConvertOutputsToFp32(torch.relu))


def test_the_environment_is_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patched and cleared variables come back, also after an error."""
    monkeypatch.setenv("KIT_TEST_A", "1")

    def fail() -> None:
        with family.patch_environment(kit_test_a=2, kit_test_b=3):
            assert (os.environ["KIT_TEST_A"], os.environ["KIT_TEST_B"]) == ("2", "3")
            with family.clear_environment():
                assert not os.environ
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert os.environ["KIT_TEST_A"] == "1"
    assert "KIT_TEST_B" not in os.environ
    assert family.parse_flag_from_env("KIT_TEST_A")
    assert family.get_int_from_env(["KIT_TEST_B", "KIT_TEST_A"], 7) == 1
    with pytest.raises(ValueError, match="maybe"):
        family.str_to_bool("maybe")


def test_what_there_is() -> None:
    """A library counts when it is installed, versions compare as versions, and what is missing is said when it is needed."""
    assert family.is_pytest_available()
    assert not family.is_megatron_lm_available()
    assert family.compare_versions("1.10.0", ">", "1.9")
    assert family.is_torch_version(">=", "2.0")
    assert "fp16" in family.PrecisionType
    assert "fp7" not in family.PrecisionType
    assert str(family.PrecisionType.BF16) == "bf16"
    needs: Any = family.deepspeed_required(lambda: None)
    with pytest.raises(UnsupportedError, match="pip install deepspeed"):
        needs()


def test_every_public_name_is_there() -> None:
    """Each name of the package's list can be had, and is documented where it is ours."""
    missing = [name for name in family.__all__ if getattr(family, name, None) is None]
    assert not missing
    assert len(set(family.__all__)) == len(family.__all__)


def test_a_model_inside_wrappers() -> None:
    """The model comes out of wrappers at every depth."""
    inner = nn.Linear(1, 1)
    outer = nn.Sequential(nn.DataParallel(inner))
    assert family.extract_model_from_parallel(nn.DataParallel(inner)) is inner
    assert family.extract_model_from_parallel(outer, recursive=True)[0] is inner
    assert family.get_pretty_name(inner) == "Linear"
    assert family.convert_bytes(1536) == "1.5 KB"
    assert family.merge_dicts({"a": {"x": 1}}, {"a": {"y": 2}, "b": 3}) == {"a": {"x": 1, "y": 2}, "b": 3}
