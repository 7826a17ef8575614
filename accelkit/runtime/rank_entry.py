"""The file that a rank starts with: takes its own folder off sys.path, then runs the script. See rank_main."""

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # this file's folder: its modules must not shadow anybody's

    from accelkit.runtime.rank_main import main

    main()
