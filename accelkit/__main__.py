"""`python -m accelkit`: what the runtime would do here, without starting ranks or joining others."""

import sys

from accelkit.runtime.describe import describe
from accelkit.runtime.errors import AccelkitError

if __name__ == "__main__":
    try:
        for line in describe():
            sys.stdout.write(line)
            sys.stdout.flush()
    except AccelkitError as error:
        sys.exit(f"accelkit: {error}")
