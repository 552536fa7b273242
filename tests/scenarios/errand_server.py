"""A list of errands, each with a random id: `errand_server.py [FILE]`, kept in the file or else in the process."""

import json
import os
import sys
from pathlib import Path

from by_hand import Refused, serve, tool

FILE = Path(sys.argv[1]) if len(sys.argv) > 1 else None
TOOLS = [
    tool("create_errand", "Creates an errand.", name="string", minutes="integer"),
    tool("set_minutes", "Sets how many minutes an errand takes.", errand_id="string", minutes="integer"),
    tool("list_errands", "Lists all errands."),
]
kept: list[dict[str, object]] = []


def call(name, arguments):
    errands = json.loads(FILE.read_text()) if FILE and FILE.exists() else kept
    if name == "create_errand":
        errands.append({"id": os.urandom(4).hex(), "name": arguments["name"], "minutes": arguments["minutes"]})
    if name == "set_minutes":
        found = [one for one in errands if one["id"] == arguments["errand_id"]]
        if not found:
            raise Refused(f"There is no errand {arguments['errand_id']}.")
        found[0]["minutes"] = arguments["minutes"]
    if FILE:
        FILE.write_text(json.dumps(errands))
    return json.dumps(sorted(errands, key=lambda one: one["id"]) if name == "list_errands" else errands[-1:])


serve("errands", TOOLS, call)
