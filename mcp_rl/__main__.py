"""Run `mcp-rl` as `python -m mcp_rl`."""

import sys

from mcp_rl.cli import main

sys.exit(main())
