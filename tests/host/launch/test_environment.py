"""Which variables reach the ranks."""

import pytest

from accelkit.contract import names
from accelkit.host.errors import UsageError
from accelkit.host.launch import environment

HERE = {
    "AWS_KEY": "k",
    "AWS_REGION": "r",
    "PATH": "/bin",
    "CUDA_VISIBLE_DEVICES": "1",
    "HOME": "/h",
    "RANK": "3",
    "PET_NNODES": "2",
}


def test_values_names_and_patterns() -> None:
    """NAME=VALUE as it stands (also with = and empty), NAME and patterns from here."""
    assert environment.asked(["A=b=c", "E=", "HOME", "AWS_*"], HERE) == {
        "A": "b=c", "E": "", "HOME": "/h", "AWS_KEY": "k", "AWS_REGION": "r",
    }  # fmt: skip


def test_a_pattern_never_brings_what_is_refused() -> None:
    """`*` means everything that may pass."""
    assert set(environment.asked(["*"], HERE)) == {"AWS_KEY", "AWS_REGION", "HOME"}


@pytest.mark.parametrize("entry", ["PATH", "RANK=1", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH=/x", "MASTER_PORT=1"])
def test_a_refused_name_is_an_error(entry: str) -> None:
    """What kit and the image set cannot be asked for."""
    with pytest.raises(UsageError, match="never passed on"):
        environment.asked([entry], HERE)


def test_a_name_that_is_not_set_is_an_error() -> None:
    """A typing mistake does not pass as an empty variable."""
    with pytest.raises(UsageError, match="NOPE: not set"):
        environment.asked(["NOPE"], HERE)


def test_local_ranks_inherit_all_but_rank_variables() -> None:
    """A torchrun around kit does not leak its ranks into ours; everything else stays."""
    kept = environment.inherited({**HERE, names.ENV_SPEC: "/x", "TORCHELASTIC_RUN_ID": "1", "MASTER_ADDR": "h"})

    assert set(kept) == {"AWS_KEY", "AWS_REGION", "PATH", "CUDA_VISIBLE_DEVICES", "HOME"}
