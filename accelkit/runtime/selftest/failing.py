"""A run that fails on purpose: the last rank exits with 7 while the others wait for it in a collective."""

import sys

from accelkit.runtime import Accelerator

EXIT_CODE = 7

if __name__ == "__main__":
    accelerator = Accelerator()
    if accelerator.is_last_process:
        sys.exit(EXIT_CODE)
    accelerator.wait_for_everyone()
