"""`python -m mcp_rl.train`: the same as `mcp-rl train`."""

import sys

from mcp_rl.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["train"]
    sys.exit(main())
