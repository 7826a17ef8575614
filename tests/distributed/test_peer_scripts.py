"""The checks that the public package `accelerate` 1.15.0 ships, run against accelkit under that name (tests/support/peer)."""

from pathlib import Path

import pytest

from tests.support import peer
from tests.support.ranks import run_ranks

OURS = {
    "test_script": {
        "check_seedable_sampler_in_batch_sampler_shard": "looks for classes of that package's own inside a loader "
        "(`batch_sampler.batch_sampler.sampler`); ours shows the script's own samplers",
    },
    "test_notebook": {
        "test_fault_tolerant": "two ranks race for one item of a queue: the loser waits in it with its lock held, and is killed so; "
        "ours counts its starts in files (tests/distributed/test_launchers.py)",
        "test_monitoring": "wants the error of torch's own launcher; ours is RankFailedError, and our own check holds what it says",
    },
    "test_distributed_data_loop": {
        "test_join_can_override_even_batches": "reads `even_batches` off that package's own batch sampler; "
        "check_uneven_inputs_are_joined compares the batches",
        "test_join_can_override_for_mixed_type_dataloaders": "the same",
        "test_join_raises_warning_for_iterable_when_overriding_even_batches": "wants a warning that streams cannot follow; ours do",
        "test_join_raises_warning_for_non_ddp_distributed": "overwrites the state's distributed_type to make the library believe "
        "that the strategy is another one; here a strategy is asked, never guessed from a name",
    },
}
"""Script -> checks of a trait that we do not share, and why."""

RUNS = [("test_ops", 1), ("test_ops", 2), ("test_sync", 1), ("test_sync", 2), ("test_script", 1), ("test_script", 2)]


@pytest.mark.skipif(peer.wheel_folder() is None, reason="accelerate is not installed: pip install --no-deps accelerate")
@pytest.mark.parametrize(
    ("script", "size"), [*RUNS, ("test_distributed_data_loop", 2), ("test_notebook", 1), ("test_cli", 1)]
)
def test_a_script_of_the_peer(tmp_path: Path, script: str, size: int) -> None:
    """Every check of the script passes on every rank, but for those that are left out by name above."""
    outcomes = run_ranks(
        size,
        "-m",
        "tests.support.peer",
        script,
        *OURS.get(script, {}),
        timeout=200,
        folder=tmp_path,
        PYTHONWARNINGS="default",
        ACCELERATE_NUM_PROCESSES="2",  # what test_notebook launches
    )

    assert [outcome.code for outcome in outcomes] == [0] * size, "\n".join(
        outcome.output[-3000:] for outcome in outcomes
    )
    assert "NotImplementedError" not in outcomes[0].output
