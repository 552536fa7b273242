"""An MCP server on stdio that keeps pages and stamps in its process, none at first, without an SDK."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from bare_server import serve_tools

TEXT = {"type": "string"}


def tool(name, *parameters):
    schema = {"type": "object", "properties": dict.fromkeys(parameters, TEXT), "required": list(parameters)}
    return {"name": name, "description": name.replace("_", " "), "inputSchema": schema, "annotations": {}}


TOOLS = [
    tool("list_pages"),
    tool("write_page", "name", "content"),
    tool("list_stamps"),
    tool("create_stamp", "name", "message"),
    tool("validate_name", "name"),
]
kept = {"page": {}, "stamp": {}}


def call(name, arguments):
    if name == "validate_name":
        return json.dumps({"valid": True, "number": 1 + len(kept["page"])})
    kind = name.partition("_")[2].removesuffix("s")
    if name.startswith("list"):
        return json.dumps({f"{kind}s": [{"name": title, "text": text} for title, text in kept[kind].items()]})
    title, text = arguments.values()
    kept[kind][title] = text
    return json.dumps({"kept": title})


serve_tools("pages", TOOLS, call)
