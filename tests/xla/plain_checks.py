"""The part of ordinary torch: save before the XLA device loads, and load what it has saved.

python -m tests.xla.plain_checks FOLDER before|after
"""

import sys
from pathlib import Path

from tests.distributed.strategy_checks import check_round_trip, check_z_other_checkpoints, run
from tests.support.strategies import CASES

if __name__ == "__main__":
    folder, when = Path(sys.argv[1]), sys.argv[2]
    check = check_round_trip if when == "before" else check_z_other_checkpoints
    run(folder, {"single": CASES["single"]}, {check.__name__: check}, when)
