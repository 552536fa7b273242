"""An MCP server on stdio with three boards, to which a tool adds others, without an SDK. `begin` starts anew."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from bare_server import serve_tools

TEXT = {"type": "string"}
NUMBER = {"type": "integer", "minimum": 1, "maximum": 40}
COLOURS = {"Harbour": "red", "Meadow": "green", "Summit": "white"}


def tool(name, about, /, **parameters):
    schema = {"type": "object", "properties": parameters, "required": list(parameters)}
    return {"name": name, "description": about, "inputSchema": schema, "annotations": {}}


TOOLS = [
    tool("list_boards", "List all boards."),
    tool("add_board", "Create a new board.", name={**TEXT, "description": "Name of the new board"}),
    tool("count_squares", "Count the squares of a grid.", rows=NUMBER, columns=NUMBER),
    tool("begin", "Start anew."),
]
boards = dict(COLOURS)


def call(name, arguments):
    if name == "begin":
        boards.clear()
        boards.update(COLOURS)
    if name == "count_squares":
        return str(arguments["rows"] * arguments["columns"])
    if name == "add_board":
        boards[arguments["name"]] = "grey"
        return json.dumps({"status": "created", "name": arguments["name"]})
    return json.dumps({"boards": [{"name": name, "colour": colour} for name, colour in boards.items()]})


serve_tools("boards", TOOLS, call)
