"""`python -m mcp_rl` is `mcp-rl`."""

import sys

from mcp_rl.cli import main

sys.exit(main())
