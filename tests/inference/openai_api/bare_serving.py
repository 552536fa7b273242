"""Serve no model at all, as `mcp-rl serve` serves its models: `bare_serving.py FILES [KEY]`. Prints the port.

FILES is the limit on open files.
"""

import resource
import sys

import anyio

from mcp_rl.inference.openai_api.app import make_app
from mcp_rl.inference.openai_api.running import bind, running
from mcp_rl.inference.openai_api.service import Service


async def main() -> None:
    files = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    app = make_app(Service([]), key=sys.argv[2] if sys.argv[2:] else None)
    async with running(app, bind("127.0.0.1", 0)) as port:
        print(port, flush=True)
        await anyio.sleep_forever()


anyio.run(main)
