"""`python -m benchmarks.gpu_check`."""

import sys

from benchmarks.gpu_check import checks  # noqa: F401  # registers them
from benchmarks.gpu_check.running import main

if __name__ == "__main__":
    sys.exit(main())
