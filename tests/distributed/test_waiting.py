"""Ranks that wait for one that does not come: nobody waits for long without a word, and the word says who is where."""

import os
import re

import pytest

from tests.support.ranks import ROOT, run_ranks

SCRIPT = str(ROOT / "tests/distributed/waiting_script.py")


@pytest.mark.parametrize(("way", "size"), [("near", 3), ("first", 2), ("far", 2)])
def test_who_is_missing_is_said(way: str, size: int) -> None:
    """After a third of the limit one rank prints, and at the limit each raises, that the last one sleeps, and at which line."""
    outcomes = run_ranks(size, SCRIPT, way, timeout=60)

    first, last = outcomes[0], outcomes[-1]
    said = "gather: rank 0 has waited {} s for ranks that have not called it"
    assert re.search(rf"^accelkit: {said.format('[2-5]')}", first.output, re.MULTILINE), first.output
    assert re.search(rf"DistributedOperationException: {said.format('[6-9]')}", first.output)
    asleep = rf"rank {size - 1}: is at {re.escape(SCRIPT)}:\d+ in oversleep: time\.sleep\(12\)"
    assert re.search(asleep, first.output), first.output
    assert "rank 0: waits in gather at" in first.output
    assert "in main: acc.gather({" in first.output
    assert first.code == 1
    assert first.seconds < last.seconds, "the limit ends the wait, not the missing rank"
    assert all("accelkit: gather" not in other.output for other in outcomes[1:]), "one rank speaks for all that wait"


def test_a_killed_rank_is_noticed_and_leaves_nothing() -> None:
    """The others end at once with an error that says so; no file of shared memory is left."""
    before = sorted(os.listdir("/dev/shm"))
    outcomes = run_ranks(2, SCRIPT, "killed", timeout=60)

    assert [outcome.code for outcome in outcomes] == [1, -9]
    assert "Connection closed by peer: rank 1 has ended" in outcomes[0].output
    assert outcomes[0].seconds - outcomes[1].seconds < 5
    assert sorted(os.listdir("/dev/shm")) == before
