"""The runtime on several ranks, through our own plug-in."""

import pytest


@pytest.mark.ranks(procs_per_node=2)
def test_gather_concatenates_in_the_order_of_ranks() -> None:
    """Every rank sees every rank's value, in order."""
    import torch

    from accelkit import Accelerator

    accelerator = Accelerator()
    found = accelerator.gather(torch.tensor([accelerator.process_index]))

    assert found.tolist() == [0, 1]
