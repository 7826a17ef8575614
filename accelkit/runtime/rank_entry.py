"""The file that a rank starts with: `rank_entry.py script|module TARGET [ARGS...]`, so that `ps` shows what a rank runs.

Takes its own folder off sys.path, whose modules must not shadow anybody's, then runs the program. See rank_main.
"""

import os
import sys

if __name__ == "__main__":
    if sys.path[0] == os.path.dirname(os.path.abspath(__file__)):  # not there under PYTHONSAFEPATH
        del sys.path[0]

    from accelkit.runtime.rank_main import main

    main(*sys.argv[1:])
