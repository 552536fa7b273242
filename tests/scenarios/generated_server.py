"""An MCP server with the tools of a JSON file (argument 1): name to input schema.

Results follow from the arguments alone. One call in five is refused; the others give numbers, texts, or objects with an
id.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from by_hand import Refused, serve

SCHEMAS: dict[str, dict[str, Any]] = json.loads(Path(sys.argv[1]).read_text())
TOOLS = [{"name": n, "inputSchema": s, "annotations": {"readOnlyHint": True}} for n, s in SCHEMAS.items()]


def call(name: str, arguments: dict[str, Any]) -> str:
    asked = json.dumps([name, arguments], sort_keys=True)
    digest = int(hashlib.sha256(asked.encode()).hexdigest(), 16)
    if digest % 5 == 0:
        raise Refused("That is not possible.")
    kinds = [str(digest % 997), f"word{digest % 89}", json.dumps({"id": f"n{digest % 7}", "size": digest % 31})]
    return kinds[digest % 3]


if __name__ == "__main__":
    serve("generated", TOOLS, call)
